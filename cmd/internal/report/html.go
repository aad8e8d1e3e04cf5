package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

//go:embed page.html
var pageText string

var pageTemplate = template.Must(template.New("page").Funcs(template.FuncMap{"cell": layersCell, "reasons": joinReasons, "limits": limits}).Parse(pageText))

// page is what the template shows.
type page struct {
	Title, Subtitle, Verdict, VerdictClass, Against string
	Cards                                           []pageCard
	Problems, Warnings, Unknown, Roles, Marks       []string
	AnyMark                                         bool
	Legend                                          []pageKey
	Rows                                            []pageRow
	Placements                                      []Placement
	Memory, Verification                            string
	Formats                                         []pageLine
	RoleRows                                        []pageLine
	WorstErrors                                     []pageTensor
	Data                                            pageData
}

type (
	pageCard struct{ Value, Label string }
	pageKey  struct{ Name, Colour string }
	pageLine struct {
		Name, Colour, Formats, Worst string
		Numbers                      []string
	}
	pageTensor struct{ Name, Format, Bytes, Error string }
	pageRow    struct {
		Layer        int
		Label, Bytes string
		Cells        []pageCell
	}
	// pageCell with a Class has no tensors.
	pageCell struct {
		Role, Text, Title, Class string
		Colour                   template.CSS // of our own making, see colours
		ID                       int
		Marks                    []pageMark
	}
	pageMark struct {
		By    int
		State string
	}
	// pageData is what the page's script reads.
	pageData struct {
		Errors  bool       `json:"errors"`
		Formats []string   `json:"formats"`
		Cells   []cellData `json:"cells"`
	}
	cellData struct {
		Title   string   `json:"title"`
		Prefix  string   `json:"prefix"` // of the tensors' names
		Text    string   `json:"text"`
		Colour  string   `json:"colour"`
		Size    string   `json:"size"`
		Bits    float64  `json:"bits"`
		Bytes   int64    `json:"bytes"`
		Error   *float64 `json:"error"`
		Tensors [][]any  `json:"tensors"` // name, index of the format, size, error
		Notes   []string `json:"notes,omitempty"`
	}
)

// colours are those of formats on the page, by the name without a group size;
// dark text is readable on all.
var colours = map[string]string{
	format.F32.String(): "#d5dae1", format.BF16.String(): "#c3ccd8", format.F16.String(): "#b3c0d1",
	format.FP8.String(): "#8fc1f2", format.Int8Row.String(): "#8ed0a5", format.Int4Grouped.String(): "#f6cf6b", format.Int4Row.String(): "#f0a25e",
	format.Int3G64.String(): "#e68aa6", format.Int2Row.String(): "#d16a72", format.E8.String(): "#b79be8", format.MXFP4.String(): "#7fd0cf",
}

// shades are the other colours of a format in several group sizes.
var shades = []string{"#ffe39a", "#e0b43c", "#d9c98a", "#c79a2e", "#fff0c4"}

// HTML writes the report as one page that needs nothing else. Layers are added
// if they are not there.
func (r *Report) HTML(w io.Writer) error {
	if r.census != nil && r.Layers == nil {
		if err := r.AddLayers(); err != nil {
			return err
		}
	}
	p := page{Title: r.Path, Verdict: r.verdict(), Warnings: r.Warnings, Unknown: r.Unknown, Placements: r.Placements}
	p.VerdictClass = map[bool]string{true: "bad"}[len(r.Problems) > 0 || len(r.damaged) > 0]
	if r.Verdict == Unknown {
		p.VerdictClass = "unsure"
	}
	if a := r.Architecture; a != nil {
		p.Subtitle = fmt.Sprintf("%s, %s (%s): %s; %s; %s; vocabulary %d, context %d", r.Kind, a.Name, a.ModelType, a.layers(), a.sizes(), a.Attention, a.Vocabulary, a.Context)
	}
	if r.Against != nil {
		p.Against = r.Against.Checkpoint
	}
	for _, problem := range r.Problems {
		p.Problems = append(p.Problems, problem.Kind+": "+problem.Message)
	}
	r.pageCards(&p)
	r.pageTables(&p)
	if r.census != nil {
		r.pageMap(&p)
	}
	var err error
	if r.Memory != nil {
		if p.Memory, err = textOf(r.WriteMemory); err != nil {
			return err
		}
	}
	if r.Verification != nil {
		if p.Verification, err = textOf(r.WriteVerification); err != nil {
			return err
		}
	}
	return pageTemplate.Execute(w, &p)
}

func textOf(write func(io.Writer) error) (string, error) {
	var b strings.Builder
	err := write(&b)
	return b.String(), err
}

func (r *Report) pageCards(p *page) {
	add := func(value, label string) {
		if value != "" {
			p.Cards = append(p.Cards, pageCard{value, label})
		}
	}
	if x := r.Parameters; x != nil {
		add(cli.Amount(x.Total), fmt.Sprintf("parameters, %s active per token", cli.Amount(x.Active)))
	}
	if r.Shards > 0 {
		add(cli.Bytes(r.FileBytes), "in "+plural(r.Shards, "shard"))
	}
	if r.Total.BitsPerWeight > 0 {
		add(fmt.Sprintf("%.2f", r.Total.BitsPerWeight), "bits per weight")
	}
	if c := r.Completeness; c != nil {
		_, layers, _ := strings.Cut(c.text(), "; ")
		add(fmt.Sprintf("%d of %d", c.Found, c.Wanted), "tensors; "+layers)
	}
	if r.MTP != nil {
		add(r.MTP.State, "MTP block, "+r.MTP.text("of no use"))
		if r.Architecture.IndexTopK > 0 {
			add(r.Indexer.State, "indexer, "+r.Indexer.text("attention is dense"))
		}
	}
	if text := r.Stamps.text(); text != "" {
		_, doubt, _ := strings.Cut(text, "; ")
		add(fmt.Sprintf("%d of %d", r.Stamps.Stamped, r.Stamps.Packed), strings.TrimSuffix("packed matrices are stamped; "+doubt, "; "))
	}
	if r.Origin != nil {
		add(r.Origin.Recipe, "recipe, made by "+r.Origin.Tool)
	}
	for _, o := range r.Overlays {
		_, label, _ := strings.Cut(o.text(), ", ")
		add(o.Name, "overlay "+label)
	}
}

// palette gives every format of the report a colour.
func (r *Report) palette() map[string]string {
	list, taken := map[string]string{}, map[string]int{}
	for _, f := range r.Formats {
		base, _, _ := strings.Cut(f.Format, "/")
		list[f.Format] = colours[base]
		if n := taken[base]; n > 0 {
			list[f.Format] = shades[(n-1)%len(shades)]
		}
		if list[f.Format] == "" {
			list[f.Format] = "#d5dae1"
		}
		taken[base]++
	}
	return list
}

func (r *Report) pageTables(p *page) {
	colour := r.palette()
	numbers := func(s Size) []string {
		return []string{fmt.Sprint(s.Tensors), cli.Amount(s.Parameters), cli.Bytes(s.Bytes), fmt.Sprintf("%.2f", s.BitsPerWeight)}
	}
	for _, f := range r.Formats {
		p.Formats = append(p.Formats, pageLine{Name: f.Format, Colour: colour[f.Format], Numbers: numbers(f.Size)})
		p.Legend = append(p.Legend, pageKey{f.Format, colour[f.Format]})
	}
	for _, x := range r.Roles {
		line := pageLine{Name: x.Role, Numbers: numbers(x.Size), Formats: countsText(x.Formats)}
		if r.Against != nil {
			i := slices.IndexFunc(r.Against.Roles, func(e RoleError) bool { return e.Role == x.Role })
			if i >= 0 {
				e := r.Against.Roles[i]
				line.Numbers = append(line.Numbers, cli.RelativeError(e.Error), cli.RelativeError(e.Worst))
				line.Worst = e.WorstTensor
			} else {
				line.Numbers = append(line.Numbers, "–", "–")
			}
		}
		p.RoleRows = append(p.RoleRows, line)
	}
	if r.Against == nil {
		return
	}
	byName := map[string]*quantize.Found{}
	for i := range r.census.Found {
		byName[r.census.Found[i].Name] = &r.census.Found[i]
	}
	for _, name := range r.worstErrors(40) {
		f, e := byName[name], r.errors[name].Relative
		if e > 0 {
			p.WorstErrors = append(p.WorstErrors, pageTensor{name, f.Spec.Name(), cli.Bytes(bytesOf(f)), cli.RelativeError(e)})
		}
	}
}
