//go:build linux && (amd64 || arm64) && !nogpu

package metal

import "testing"

func BenchmarkEmulatorGemv(b *testing.B) {
	for _, check := range []bool{false, true} {
		c := newChain(emulator(b, EmulatorOptions{Check: check}), checkText(b))
		c.rows, c.cols = 1024, 1024
		name := "plain"
		if check {
			name = "checked"
		}
		b.Run(name, func(b *testing.B) {
			if err := c.fill(); err != nil {
				b.Fatal(err)
			}
			lib, err := c.d.NewLibrary("check.metal", c.text)
			if err != nil {
				b.Fatal(err)
			}
			p, err := lib.NewPipeline("gemv", Constant{0, uint32(checkGroup)})
			if err != nil {
				b.Fatal(err)
			}
			x, _ := c.d.NewBuffer(4*c.cols, Private)
			_ = x.Zero()
			q, _ := c.d.NewQueue()
			b.SetBytes(int64(c.rows * c.cols))
			for b.Loop() {
				cb := q.CommandBuffer()
				e := cb.Encoder(true)
				e.SetPipeline(p)
				e.SetBuffer(0, c.w[0], 0)
				e.SetBuffer(1, c.s[0], 0)
				e.SetBuffer(2, x, 0)
				e.SetBuffer(3, c.g[0], 0)
				e.SetBytes(4, u32(uint32(c.rows), uint32(c.cols)))
				e.SetThreadgroupMemory(0, 1024)
				e.Dispatch(Size{X: c.rows / 4}, Size{X: 128})
				e.End()
				cb.Commit()
				if err := cb.Wait(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
