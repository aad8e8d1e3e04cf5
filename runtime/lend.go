package runtime

import "unsafe"

// Lend makes mem, Rows·Width elements of four bytes in the machine's order, the
// memory of a buffer that another backend made, so that commands on it can run
// here too. Buffers of one CPU backend are either all its own or all lent.
func (c *CPU) Lend(v Vec, mem []byte) {
	for len(c.floats) <= v.ID {
		c.floats, c.ints = append(c.floats, nil), append(c.ints, nil)
	}
	p, n := unsafe.Pointer(unsafe.SliceData(mem)), v.Rows*v.Width
	if v.Elem == Float {
		c.floats[v.ID] = unsafe.Slice((*float32)(p), n)
	} else {
		c.ints[v.ID] = unsafe.Slice((*int32)(p), n)
	}
}
