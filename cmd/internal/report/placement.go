package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// Placement is what an engine or one of our backends would run on the GPU, as
// formats and shapes alone decide it.
type Placement struct {
	By     string `json:"by"`     // "colibri-1.12", "metal"
	Source string `json:"source"` // where the gates are from
	Device string `json:"device"` // that is predicted, whether or not it is at hand; empty for engines and the CPU
	// Dimensions are sizes for which the engine has no kernel. With any of them
	// nothing that needs it reaches the GPU; Paths still say what formats allow.
	Dimensions []string     `json:"dimensions"`
	Paths      []PlacedPath `json:"paths"`
	Warnings   []string     `json:"warnings"` // what it would read wrongly or not at all
}

// PlacedPath is one way through the engine, layer by layer. A layer that the
// engine reads wrongly is neither on the GPU nor on the CPU.
type PlacedPath struct {
	Path          string         `json:"path"`
	GPU           string         `json:"gpu"` // layers, as ranges
	CPU           string         `json:"cpu"`
	Misread       string         `json:"misread"`
	GPULayers     int            `json:"gpu_layers"`
	CPULayers     int            `json:"cpu_layers"`
	MisreadLayers int            `json:"misread_layers"`
	Blocked       bool           `json:"blocked"` // by Dimensions
	Limits        []string       `json:"limits"`
	Reasons       []PlacedReason `json:"reasons"` // why layers are not on the GPU

	layers map[int]string // the state of each
}

// PlacedReason is why some layers are not on the GPU.
type PlacedReason struct {
	State   string `json:"state"` // "cpu" or "misread"
	Layers  string `json:"layers"`
	Role    string `json:"role"`
	Format  string `json:"format"`
	Tensors int    `json:"tensors"`
	Why     string `json:"why"`
	Cure    string `json:"cure"` // a command; empty where there is none

	layers map[int]bool
}

// The states of a layer on a path.
const (
	onGPU   = "gpu"
	onCPU   = "cpu"
	misread = "misread"
)

// outside is how the layers' ranges spell what belongs to no layer.
const outside = "outside the layers"

func rangesText(layers []int) string {
	inside := slices.DeleteFunc(slices.Clone(layers), func(n int) bool { return n < 0 })
	text := format.Ranges(inside)
	switch {
	case len(inside) == len(layers):
		return text
	case text == "":
		return outside
	}
	return text + ", " + outside
}

// layersText is ranges with a word before them.
func layersText(ranges string) string {
	switch {
	case strings.HasPrefix(ranges, outside):
		return ranges
	case strings.ContainsAny(ranges, ",-"):
		return "layers " + ranges
	}
	return "layer " + ranges
}

// placer collects what decides a path.
type placer struct {
	PlacedPath
	reasons map[[4]string]int // state, role, format, why → index
}

func newPlacer(path string, limits []string) *placer {
	return &placer{PlacedPath: PlacedPath{Path: path, Limits: append([]string{}, limits...), Reasons: []PlacedReason{}, layers: map[int]string{}}, reasons: map[[4]string]int{}}
}

// see says that a layer is on the path; without a reason it is on the GPU.
func (p *placer) see(layer int) {
	if p.layers[layer] == "" {
		p.layers[layer] = onGPU
	}
}

// off takes a layer off the GPU. Misreading is graver than the CPU.
func (p *placer) off(layer int, r PlacedReason) {
	if p.layers[layer] != misread {
		p.layers[layer] = r.State
	}
	key := [4]string{r.State, r.Role, r.Format, r.Why}
	i, ok := p.reasons[key]
	if !ok {
		i = len(p.Reasons)
		p.reasons[key] = i
		r.layers = map[int]bool{}
		p.Reasons = append(p.Reasons, r)
	}
	p.Reasons[i].layers[layer] = true
	p.Reasons[i].Tensors++
}

func (p *placer) done() PlacedPath {
	list := func(state string) (text string, n int) {
		var layers []int
		for l, s := range p.layers {
			if s == state {
				layers = append(layers, l)
				n += one(l >= 0)
			}
		}
		return rangesText(layers), n
	}
	p.GPU, p.GPULayers = list(onGPU)
	p.CPU, p.CPULayers = list(onCPU)
	p.Misread, p.MisreadLayers = list(misread)
	for i := range p.Reasons {
		p.Reasons[i].Layers = rangesText(slices.Collect(maps.Keys(p.Reasons[i].layers)))
	}
	return p.PlacedPath
}

// overlayCommand is a command that replaces tensors of the snapshot, which are
// in a format now that cannot be decoded where there is no codec for it.
func (r *Report) overlayCommand(args string, now format.ID) string {
	if args == "" || r.Kind != "container" {
		return ""
	}
	if _, err := quantize.CodecFor(now); err != nil {
		args += " --from CHECKPOINT"
	}
	return "convert overlay " + cli.ShellWord(r.Path) + " " + args
}

// mainModel is what is found of the model without its MTP block, layer by layer.
func mainModel(found []quantize.Found) []*quantize.Found {
	list := make([]*quantize.Found, 0, len(found))
	for i := range found {
		if f := &found[i]; !f.MTP {
			list = append(list, f)
		}
	}
	return list
}

// needsModel is the error of a section that a snapshot without a known model cannot have.
func (r *Report) needsModel(flag string) error {
	if r.census != nil {
		return nil
	}
	return &format.Error{Kind: format.ErrUsage, Path: r.Path, What: flag + " needs a config.json of a known architecture"}
}

// WritePlacements writes Placements.
func (r *Report) WritePlacements(w io.Writer) error {
	var l lines
	for i := range r.Placements {
		p := &r.Placements[i]
		if i > 0 {
			l.f("")
		}
		l.f("placement by %s", p.By)
		l.f("  from %s", p.Source)
		if p.Device != "" {
			l.f("  predicted for %s; run --list-devices says what this machine has", p.Device)
		}
		if len(p.Dimensions) > 0 {
			l.f("\nnothing of this model reaches that engine's fused kernels, which are compiled for other sizes:")
			for _, d := range p.Dimensions {
				l.f("  %s", d)
			}
			l.f("What follows is what the formats alone allow.")
		}
		l.f("")
		l.WriteString(p.table().String())
		l.reasons(p.Paths)
		l.section("what formats do not decide", limits(p.Paths))
		l.section("warnings for "+p.By, p.Warnings)
	}
	return l.to(w)
}

// mark is what a placement says about a role of a layer: "*" for the CPU, "!"
// for what is read wrongly.
func (r *Report) mark(layer *Layer, role string) string {
	mark := ""
	for i := range r.Placements {
		switch r.Placements[i].state(layer, role) {
		case misread:
			return "!"
		case onCPU:
			mark = "*"
		}
	}
	return mark
}

// state is the gravest that the reasons give a role of a layer; empty for none.
func (p *Placement) state(layer *Layer, role string) string {
	state := ""
	for _, path := range p.Paths {
		for _, why := range path.Reasons {
			if why.Role == role && why.layers[layer.Layer] && !layer.MTP && state != misread {
				state = why.State
			}
		}
	}
	return state
}

// placers names who has placed.
func (r *Report) placers() string {
	var list []string
	for _, p := range r.Placements {
		list = append(list, p.By)
	}
	return wanted(list)
}

// placementLines is a line for our own GPU backend, and one for the newest
// engine of the data that runs a container of these sizes.
func (r *Report) placementLines() []string {
	if r.census == nil || r.Kind != "container" {
		return nil
	}
	p := r.placeGPU("metal", limitsOf("metal"))
	list := []string{p.line("--backend metal")}
	known, _ := engines() // a test reads the file
	for _, e := range slices.Backward(known) {
		if !slices.Contains(e.ModelTypes, r.config.ModelType) {
			continue
		}
		if p := r.placeEngine(&e); len(p.Dimensions) == 0 {
			list = append(list, p.line("--engine "+e.Name))
		}
		break
	}
	return list
}

// line sums up a placement and names the flag that says more.
func (p *Placement) line(flag string) string {
	var parts []string
	for _, x := range p.Paths {
		if x.GPULayers+x.CPULayers+x.MisreadLayers == 0 {
			continue // embedding and head: too little to matter
		}
		if x.CPU != "" {
			parts = append(parts, fmt.Sprintf("%s of %s", x.Path, layersText(x.CPU)))
		}
		if x.Misread != "" {
			parts = append(parts, fmt.Sprintf("%s of %s read wrongly", x.Path, layersText(x.Misread)))
		}
	}
	by := p.By
	if p.Device != "" {
		by += ", predicted for " + p.Device
	}
	if len(parts) == 0 {
		return by + ": all layers on the GPU"
	}
	return by + ": not on the GPU: " + strings.Join(parts, ", ") + "; " + flag + " says why"
}

// table has a column for what is read wrongly only where something is.
func (p *Placement) table() *cli.Table {
	wrong := slices.ContainsFunc(p.Paths, func(x PlacedPath) bool { return x.Misread != "" })
	head := []string{"path", "GPU", "CPU"}
	if wrong {
		head = append(head, "read wrongly")
	}
	t := cli.NewTable(head...).Left(1, 2, 3)
	for _, x := range p.Paths {
		cells := []any{x.Path, layersCell(x.GPU), layersCell(x.CPU)}
		if x.GPU == outside && x.CPU != "" {
			cells[1] = "outside"
		}
		if wrong {
			cells = append(cells, layersCell(x.Misread))
		}
		t.Add(cells...)
	}
	return t
}

// limits lists the paths' conditions, each once.
func limits(paths []PlacedPath) []string {
	var list []string
	of := map[string][]string{}
	for _, p := range paths {
		for _, x := range p.Limits {
			if of[x] == nil {
				list = append(list, x)
			}
			of[x] = append(of[x], p.Path)
		}
	}
	for i, x := range list {
		list[i] = strings.Join(of[x], ", ") + ": " + x
	}
	return list
}

func layersCell(ranges string) string {
	switch {
	case ranges == "":
		return "–"
	case ranges == outside:
		return "all"
	case strings.HasSuffix(ranges, ", "+outside):
		return strings.TrimSuffix(ranges, outside) + "outside"
	}
	return ranges
}

// joined is a reason that several paths have.
type joined struct {
	PlacedReason
	Where string // paths and their layers
}

// joinReasons lists the reasons of all paths, each once.
func joinReasons(paths []PlacedPath) []joined {
	var list []joined
	index := map[[5]string]int{}
	layers := map[int][]string{} // of each path that has the reason
	for i := range paths {
		for _, x := range paths[i].Reasons {
			key := [5]string{x.State, x.Role, x.Format, x.Why, x.Cure}
			j, ok := index[key]
			if !ok {
				j = len(list)
				index[key] = j
				list = append(list, joined{PlacedReason: x})
			}
			where := layersText(x.Layers)
			if k := len(layers[j]) - 1; k >= 0 && strings.HasSuffix(layers[j][k], ": "+where) {
				layers[j][k] = strings.TrimSuffix(layers[j][k], ": "+where) + ", " + paths[i].Path + ": " + where
				continue
			}
			layers[j] = append(layers[j], paths[i].Path+": "+where)
		}
	}
	for j := range list {
		list[j].Where = strings.Join(layers[j], "; ")
	}
	return list
}

func (l *lines) reasons(paths []PlacedPath) {
	list := joinReasons(paths)
	if len(list) == 0 {
		if slices.ContainsFunc(paths, func(p PlacedPath) bool { return p.CPU != "" }) {
			return
		}
		l.f("\neverything that has a path to the GPU is on it")
		return
	}
	l.f("\nnot on the GPU")
	for _, x := range list {
		l.f("  %s", clean(strings.TrimSpace(x.Role+" "+x.Format)+": "+x.Why))
		l.f("    %s", clean(x.Where))
		if x.Cure != "" {
			l.f("    cure: %s", clean(x.Cure))
		}
	}
}

// wanted lists formats: "a, b or c".
func wanted(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " or " + list[len(list)-1]
}
