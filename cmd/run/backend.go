package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/metal"
	"hawkmoth/runtime"
)

// backendNames are the values of --backend on any system; which of them this one
// has is for metal.Drivers to say.
var backendNames = []string{"auto", "cpu", "metal", "cuda", "emulator"}

// placement is where a model runs.
type placement struct {
	gpu     *metal.Backend // nil: everything on the CPU
	dev     metal.Device   // of gpu, which closes it
	cpu     *runtime.CPU   // the whole backend, or what takes over from the GPU
	name    string
	list    []metal.Placement
	notices []metal.Notice
	noRoom  bool // on the GPU for all weights that list places there
}

func (p *placement) backend() runtime.Backend {
	if p.gpu != nil {
		return p.gpu
	}
	return p.cpu
}

// layers says how many layers run on the GPU alone, "78/78 layers"; on the CPU
// it is the number of threads.
func (p *placement) layers() string {
	if p.gpu == nil {
		return count(p.cpu.Threads(), "thread")
	}
	off := map[int]bool{}
	all := map[int]bool{}
	for _, x := range p.list {
		if x.Layer >= 0 {
			all[x.Layer] = true
			off[x.Layer] = off[x.Layer] || x.Why != nil
		}
	}
	on := 0
	for l := range all {
		if !off[l] {
			on++
		}
	}
	if p.noRoom {
		return fmt.Sprintf("at most %d/%d layers", on, len(all))
	}
	return fmt.Sprintf("%d/%d layers", on, len(all))
}

// bandwidth is how fast the memory that holds the weights can be read, in GB/s,
// measured now.
func (p *placement) bandwidth() (float64, error) {
	if p.gpu == nil {
		return runtime.ReadBandwidth(p.cpu.Threads()) / 1e9, nil
	}
	rate, err := metal.Bandwidth(p.dev, 1<<30)
	return rate / 1e9, err
}

// open makes the backend that --backend names. "auto" is the first GPU whose
// arithmetic passes the probe, else the CPU.
func (f *modelFlags) open(cmd *cobra.Command) (*placement, error) {
	if f.backend == "cpu" {
		return &placement{cpu: runtime.NewCPU(f.threads), name: "cpu"}, nil
	}
	for _, d := range metal.Drivers() {
		if f.backend != d.Name && (f.backend != "auto" || d.Emulated) {
			continue
		}
		p, err := f.openGPU(d)
		switch {
		case err == nil:
			return p, nil
		case f.backend != "auto", errors.Is(err, format.ErrUsage):
			return nil, err
		case !errors.Is(err, metal.ErrNoDevice):
			cli.Warn(cmd, "%s is not used: %v", d.Name, err)
		}
	}
	if f.backend != "auto" {
		have := []string{"auto", "cpu"}
		for _, d := range metal.Drivers() {
			have = append(have, d.Name)
		}
		return nil, &format.Error{Kind: format.ErrUnsupported, What: "no such backend on this system", Found: f.backend, Wanted: strings.Join(have, ", ")}
	}
	if f.deviceFlag.Changed {
		return nil, &format.Error{Kind: format.ErrUnsupported, What: "--device: no GPU is used; see --list-devices", Found: fmt.Sprint(f.device)}
	}
	return &placement{cpu: runtime.NewCPU(f.threads), name: "cpu"}, nil
}

func (f *modelFlags) openGPU(d metal.Driver) (*placement, error) {
	unsupported := func(err error) error {
		return &format.Error{Kind: format.ErrUnsupported, What: "backend " + d.Name, Err: err}
	}
	names, err := d.Devices()
	switch {
	case err != nil:
		return nil, unsupported(err)
	case f.device >= len(names):
		return nil, &format.Error{Kind: format.ErrUsage, What: "--device: backend " + d.Name + " has no such device", Found: fmt.Sprint(f.device), Wanted: "less than " + fmt.Sprint(len(names))}
	}
	dev, err := d.Open(f.device)
	if err != nil {
		return nil, unsupported(err)
	}
	if err := metal.Probe(dev); err != nil {
		return nil, unsupported(errors.Join(err, dev.Close()))
	}
	off := slices.Clone(f.disable)
	if f.residency == "off" {
		off = append(off, "residency")
	}
	limits := dev.Limits()
	gpu, err := metal.New(metal.Options{Device: dev, Threads: f.threads, Disable: off})
	if err != nil {
		return nil, err
	}
	f.limits, f.off = limits, off
	return &placement{gpu: gpu, dev: dev, cpu: gpu.CPU(), name: d.Name}, nil
}

// place says where every tensor of the model goes and prints, once for each
// kind of tensor, what leaves the GPU and what would bring it back.
func (f *modelFlags) place(cmd *cobra.Command, m *runtime.Model, p *placement, dir string) error {
	if p.gpu == nil {
		if f.requireGPU {
			return &format.Error{Kind: format.ErrUnsupported, What: "--require-gpu: no GPU is used, every layer would run on the CPU; see --list-devices"}
		}
		return nil
	}
	p.list = metal.Place(m.Config.Needs(), m.Census.Readings(), f.limits, f.off...)
	p.notices = metal.Notices(p.list, f.limits, cli.ShellWord(dir))
	left, err := p.gpu.NoRoom()
	if err != nil {
		return err
	}
	if p.noRoom = left != nil; p.noRoom {
		p.notices = append(p.notices, *left)
	}
	if f.requireGPU {
		if err := metal.Require(p.notices); err != nil {
			return err
		}
	}
	for _, n := range p.notices {
		cli.Warn(cmd, "[%s] %s", p.name, n.Text)
	}
	return nil
}

// listedDevice is a line of --list-devices.
type listedDevice struct {
	Backend string `json:"backend"`
	Index   int    `json:"index"`
	Name    string `json:"name"`
	Usable  bool   `json:"usable"`
	Why     string `json:"why,omitempty"` // it is not usable
}

// listDevices opens and probes every device.
func listDevices(cmd *cobra.Command) error {
	list := []listedDevice{{Backend: "cpu", Name: "this processor", Usable: true}}
	for _, d := range metal.Drivers() {
		names, err := d.Devices()
		if err != nil {
			list = append(list, listedDevice{Backend: d.Name, Why: err.Error()})
			continue
		}
		for i, name := range names {
			l := listedDevice{Backend: d.Name, Index: i, Name: name}
			dev, err := d.Open(i)
			if err == nil {
				err = errors.Join(metal.Probe(dev), dev.Close())
			}
			if l.Usable = err == nil; err != nil {
				l.Why = err.Error()
			}
			list = append(list, l)
		}
	}
	if cli.JSON(cmd) {
		return cli.PrintJSON(cmd, list)
	}
	for _, l := range list {
		text := fmt.Sprintf("%-10s %d  %s", l.Backend, l.Index, l.Name)
		if !l.Usable {
			text = fmt.Sprintf("%-10s –  %s", l.Backend, strings.TrimPrefix(l.Why, l.Backend+": "))
		}
		if _, err := fmt.Fprintln(cmd.OutOrStdout(), text); err != nil {
			return err
		}
	}
	return nil
}
