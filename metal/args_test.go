package metal

import (
	"fmt"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	mslStruct = regexp.MustCompile(`(?s)\nstruct (\w+) \{\n(.*?)\n\};`)
	mslField  = regexp.MustCompile(`^\s*(.+?)\s*\b(\w+)(\[\d+\])?;`)
)

// snake is a Go name as the kernels spell it: XStride → x_stride.
func snake(s string) string {
	var b strings.Builder
	for i, r := range s {
		if unicode.IsUpper(r) && i > 0 && (unicode.IsLower(rune(s[i-1])) || i+1 < len(s) && unicode.IsLower(rune(s[i+1]))) {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

func TestArgumentStructsAreTheKernels(t *testing.T) {
	types := map[string]string{"uint": "uint32", "float": "float32", "device const uchar*": "uint64", "device const float*": "uint64"}
	text := map[string]string{}
	for _, name := range Sources() {
		s, err := Source(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range mslStruct.FindAllStringSubmatch(s, -1) {
			text[m[1]] = m[2]
		}
	}
	for _, v := range []any{embedArgs{}, tokens{}, roundArgs{}, matMulArgs{}, normArgs{}, pointArgs{}, ropeArgs{}, qAbsArgs{}, attendArgs{},
		indexArgs{}, routeArgs{}, groupArgs{}, tile{}, expert{}, expertArgs{}, sumArgs{}} {
		typ := reflect.TypeOf(v)
		name := strings.ToUpper(typ.Name()[:1]) + typ.Name()[1:]
		fields := strings.Split(text[name], "\n")
		if text[name] == "" || len(fields) != typ.NumField() {
			t.Errorf("%s has %d fields in the kernels, %d in Go", name, len(fields), typ.NumField())
			continue
		}
		for i, line := range fields {
			f := typ.Field(i)
			m := mslField.FindStringSubmatch(line)
			if m == nil {
				t.Errorf("%s: %q", name, line)
				continue
			}
			// "QAbs" and "ID" are words of their own in Go.
			if want := fmt.Sprint(m[3], types[m[1]]); m[2] != snake(f.Name) || f.Type.String() != want {
				t.Errorf("%s: field %d is %s %s in the kernels, %s %s in Go", name, i, m[2], want, snake(f.Name), f.Type)
			}
		}
	}
}
