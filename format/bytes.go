package format

import "fmt"

// Bytes writes a number of bytes in decimal units: "999 B", "1.5 GB".
func Bytes(n int64) string {
	v, sign := float64(n), ""
	if n < 0 {
		v, sign = -v, "-"
	}
	if v < 1000 {
		return fmt.Sprintf("%s%.0f B", sign, v)
	}
	unit := 0
	for units := "kMGTPE"; ; unit++ {
		v /= 1000
		if v < 999.95 || unit == len(units)-1 {
			return fmt.Sprintf("%s%.1f %cB", sign, v, units[unit])
		}
	}
}
