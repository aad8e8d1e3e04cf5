package quantize

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"hawkmoth/format"
)

// Choice is what a recipe does with a tensor: leave it out, or write it in a
// format. Group is the columns that share a scale (Int4Grouped only).
type Choice struct {
	Format format.ID
	Group  int
	Drop   bool
}

// String is the choice as recipe files spell it: "int4-grouped/64", "drop".
func (c Choice) String() string {
	if c.Drop {
		return "drop"
	}
	return format.Spec{Format: c.Format, Group: c.Group}.Name()
}

// MarshalText writes a choice as String does.
func (c Choice) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

// DefaultGroup is the group size of int4-grouped where none is given.
const DefaultGroup = 64

var (
	choiceDrop = Choice{Drop: true}
	choiceF32  = Choice{Format: format.F32}
	choiceInt8 = Choice{Format: format.Int8Row}
	choiceInt4 = Choice{Format: format.Int4Grouped, Group: DefaultGroup}

	// exactRoles stay float32, whatever a recipe says.
	exactRoles = []Role{Norm, Router, RouterBias}
)

// Override gives one format to every tensor whose name a regular expression
// finds; a format of codes and scales passes over what is kept exact.
type Override struct {
	Match  *regexp.Regexp
	Choice Choice
}

// String is the override as --tensor spells it.
func (o Override) String() string { return o.Match.String() + "=" + o.Choice.String() }

// Recipe maps roles to formats. Vectors and routers are exact float32 whatever
// it says; for them only Drop counts.
type Recipe struct {
	Name, Doc string
	Roles     [numRoles]Choice // outside the MTP block
	MTP       Choice           // every matrix of the MTP block
	Gate      *Choice          // gate_proj of the routed experts; nil is as Roles[Expert]
	Up, Down  *Choice          // likewise
	Overrides []Override       // the last that matches wins over everything else
	Shards    string           // the prefix of the shards' names

	bits []BitFlag // that were given; each must decide some tensor
}

func roles(rest Choice, except map[Role]Choice) (all [numRoles]Choice) {
	for r := range all {
		all[r] = rest
		if slices.Contains(exactRoles, Role(r)) && !rest.Drop {
			all[r] = choiceF32
		}
		if c, ok := except[Role(r)]; ok {
			all[r] = c
		}
	}
	return all
}

var recipes = []Recipe{
	{Name: "balanced", Doc: "the default: routed experts at 4 bits, what every token meets at 8", Shards: "out",
		Roles: roles(choiceInt8, map[Role]Choice{Expert: choiceInt4}), MTP: choiceInt8},
	{Name: "small", Doc: "everything at 4 bits but embeddings, head and MTP block", Shards: "out",
		Roles: roles(choiceInt4, map[Role]Choice{Embed: choiceInt8, Head: choiceInt8}), MTP: choiceInt8},
	{Name: "colibri", Doc: "what the colibri engine's converter writes by default, byte for byte", Shards: "out",
		Roles: roles(choiceInt4, map[Role]Choice{Embed: choiceInt8, Head: choiceInt8, Indexer: choiceDrop}), MTP: choiceDrop},
	{Name: "colibri-metal", Doc: "balanced with kv_b as colibri's fused Metal attention asks for", Shards: "out",
		Roles: roles(choiceInt8, map[Role]Choice{Expert: choiceInt4, KVB: choiceInt4}), MTP: choiceInt8},
	{Name: "colibri-mtp", Doc: "colibri's --mtp pass: the MTP block alone, without its indexer", Shards: "out-mtp",
		Roles: roles(choiceDrop, nil), MTP: choiceInt8},
	{Name: "colibri-indexer", Doc: "colibri's --indexer --ebits 8 pass: the main layers' indexers alone", Shards: "out-idx",
		Roles: roles(choiceDrop, map[Role]Choice{Indexer: choiceInt8}), MTP: choiceDrop},
}

// Recipes lists the built-in recipes, the default first.
func Recipes() []Recipe { return slices.Clone(recipes) }

// RecipeFor is a built-in recipe by name; format.ErrUsage for an unknown name.
func RecipeFor(name string) (*Recipe, error) {
	names := make([]string, len(recipes))
	for i, r := range recipes {
		if r.Name == name {
			return &r, nil
		}
		names[i] = r.Name
	}
	return nil, &format.Error{Kind: format.ErrUsage, What: "no such recipe", Found: fmt.Sprintf("%q", name),
		Wanted: strings.Join(names, ", ") + " or a JSON file"}
}

// RecipeFile is the JSON of a recipe file. A choice is a format as ParseFormat
// reads it, or "drop"; what the file leaves out is as in Base. Unknown and
// repeated keys are refused.
type RecipeFile struct {
	Name    string            `json:"name"`
	Doc     string            `json:"doc"`
	Base    string            `json:"base"`    // a built-in recipe, "balanced" if absent
	Roles   map[string]string `json:"roles"`   // by role: "kv_b": "int8-row"
	MTP     string            `json:"mtp"`     // every matrix of the MTP block
	Gate    string            `json:"gate"`    // gate_proj of the routed experts
	Up      string            `json:"up"`      // up_proj of the routed experts
	Down    string            `json:"down"`    // down_proj of the routed experts
	Tensors []string          `json:"tensors"` // "REGEX=FORMAT[/GS]", as --tensor
}

// ReadRecipe reads a recipe file; path is for its errors, which are
// format.ErrUsage and name every fault at once.
func ReadRecipe(path string, data []byte) (*Recipe, error) {
	var file RecipeFile
	if err := json.Unmarshal(data, &file, json.RejectUnknownMembers(true)); err != nil {
		return nil, &format.Error{Kind: format.ErrUsage, Path: path, What: "not a recipe", Err: err}
	}
	r, err := RecipeFor(cmp.Or(file.Base, recipes[0].Name))
	if err != nil {
		return nil, &format.Error{Kind: format.ErrUsage, Path: path, What: "base", Err: err}
	}
	r.Name, r.Doc = cmp.Or(file.Name, path), file.Doc
	var problems format.Problems
	set := func(key, text string) (c Choice, ok bool) {
		if text == "" {
			return c, false
		}
		c, err := parseChoice(text, DefaultGroup)
		if err != nil {
			problems = append(problems, &format.Error{Kind: format.ErrUsage, Path: path, What: key, Err: err})
		}
		return c, err == nil
	}
	for name, text := range file.Roles {
		i := slices.IndexFunc(Roles(), func(r Role) bool { return r.String() == name })
		switch c, ok := set("roles: "+name, text); {
		case i < 0:
			problems = append(problems, &format.Error{Kind: format.ErrUsage, Path: path, What: "no such role", Found: fmt.Sprintf("%q", name), Wanted: roleList()})
		case ok && slices.Contains(exactRoles, Role(i)) && c != choiceF32 && c != choiceDrop:
			problems = append(problems, &format.Error{Kind: format.ErrUsage, Path: path, What: "roles: " + name + " is always exact", Found: text, Wanted: "f32 or drop"})
		case ok:
			r.Roles[i] = c
		}
	}
	slices.SortFunc(problems, func(a, b error) int { return cmp.Compare(a.Error(), b.Error()) })
	if c, ok := set("mtp", file.MTP); ok {
		r.MTP = c
	}
	for _, p := range []struct {
		key, text string
		dst       **Choice
	}{{"gate", file.Gate, &r.Gate}, {"up", file.Up, &r.Up}, {"down", file.Down, &r.Down}} {
		if c, ok := set(p.key, p.text); ok {
			*p.dst = &c
		}
	}
	for _, text := range file.Tensors {
		o, err := parseOverride(text, DefaultGroup)
		if err != nil {
			problems = append(problems, err)
			continue
		}
		r.Overrides = append(r.Overrides, o)
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return r, nil
}

func roleList() string {
	var names []string
	for _, r := range Roles() {
		names = append(names, r.String())
	}
	return strings.Join(names, ", ")
}

// ParseChoice reads a format that can be written, "int4-grouped/64"; group is
// what int4-grouped without a size means, 0 for int4-row. Everything else is
// format.ErrUsage.
func ParseChoice(text string, group int) (Choice, error) {
	if group != 0 && !slices.Contains(format.GroupSizes, group) {
		return Choice{}, &format.Error{Kind: format.ErrUsage, What: "--group-size", Found: strconv.Itoa(group), Wanted: fmt.Sprintf("0 (one scale a row) or one of %v", format.GroupSizes)}
	}
	c, err := parseChoice(text, group)
	if err != nil || c.Drop {
		return Choice{}, &format.Error{Kind: format.ErrUsage, What: "--format", Found: fmt.Sprintf("%q", text), Wanted: writable()}
	}
	return c, nil
}

// parseChoice reads "drop" or a format that can be written; group is what
// int4-grouped without a size means, 0 for int4-row.
func parseChoice(text string, group int) (Choice, error) {
	if text == "drop" {
		return choiceDrop, nil
	}
	id, size, err := format.ParseFormat(text)
	if err != nil {
		return Choice{}, err
	}
	if !id.Info().Write {
		return Choice{}, &format.Error{Kind: format.ErrUnsupported, What: "a format that cannot be written", Found: text, Wanted: writable()}
	}
	if id == format.Int4Grouped && size == 0 {
		return grouped(group), nil
	}
	return Choice{Format: id, Group: size}, nil
}

func writable() string {
	var names []string
	for _, in := range format.Formats() {
		if in.Write {
			names = append(names, in.Name)
		}
	}
	return strings.Join(names, ", ")
}

func grouped(group int) Choice {
	if group == 0 {
		return Choice{Format: format.Int4Row}
	}
	return Choice{Format: format.Int4Grouped, Group: group}
}

func parseOverride(text string, group int) (Override, error) {
	i := strings.LastIndex(text, "=")
	if i <= 0 {
		return Override{}, &format.Error{Kind: format.ErrUsage, What: "tensor override", Found: fmt.Sprintf("%q", text), Wanted: "REGEX=FORMAT[/GS]"}
	}
	c, err := parseChoice(text[i+1:], group)
	if err != nil {
		return Override{}, &format.Error{Kind: format.ErrUsage, What: fmt.Sprintf("tensor override %q", text), Err: err}
	}
	match, err := regexp.Compile(text[:i])
	if err != nil {
		return Override{}, &format.Error{Kind: format.ErrUsage, What: fmt.Sprintf("tensor override %q", text), Err: err}
	}
	return Override{match, c}, nil
}

// BitFlag is a flag that sets the width of some roles, spelt as colibri's
// converter spells it.
type BitFlag struct {
	Name, Doc  string
	Roles      []Role
	MTP        bool
	Projection string // of the routed experts: "gate", "up" or "down"
}

var bitFlags = []BitFlag{
	{Name: "ebits", Doc: "residents, and routed experts unless --xbits", Roles: []Role{Attn, KVB, Out, Dense, Shared, Indexer, Expert}},
	{Name: "xbits", Doc: "routed experts", Roles: []Role{Expert}},
	{Name: "attn-bits", Doc: "q_a, q_b, kv_a", Roles: []Role{Attn}},
	{Name: "kvb-bits", Doc: "kv_b", Roles: []Role{KVB}},
	{Name: "o-bits", Doc: "o_proj", Roles: []Role{Out}},
	{Name: "shared-bits", Doc: "shared experts", Roles: []Role{Shared}},
	{Name: "dmlp-bits", Doc: "MLPs of the dense layers", Roles: []Role{Dense}},
	{Name: "io-bits", Doc: "embeddings and head", Roles: []Role{Embed, Head}},
	{Name: "mtp-bits", Doc: "the MTP block", MTP: true},
	{Name: "indexer-bits", Doc: "indexers", Roles: []Role{Indexer}},
	{Name: "gate-bits", Doc: "gate_proj of the routed experts", Projection: "gate"},
	{Name: "up-bits", Doc: "up_proj of the routed experts", Projection: "up"},
	{Name: "down-bits", Doc: "down_proj of the routed experts", Projection: "down"},
}

// BitFlags lists the flags in the order in which they apply.
func BitFlags() []BitFlag { return slices.Clone(bitFlags) }

// bitWidths is the format that a width means; 4 is int4-grouped, or int4-row
// when the group size is 0.
var bitWidths = map[int]format.ID{16: format.BF16, 8: format.Int8Row, 4: format.Int4Grouped, 3: format.Int3G64, 2: format.Int2Row}

// Flags are the changes that a command line makes to a recipe; the zero value
// makes none. They apply in the order of the fields, Bits in that of BitFlags.
type Flags struct {
	GroupSize *int           // for every int4-grouped; 0 is int4-row instead
	Format    string         // one format for every matrix
	Bits      map[string]int // by the name of a BitFlag
	Tensors   []string       // "REGEX=FORMAT[/GS]"
}

// With is the recipe with the flags applied; every fault is reported at once
// as format.ErrUsage.
func (r *Recipe) With(f Flags) (*Recipe, error) {
	var problems format.Problems
	fail := func(what, found, wanted string) {
		problems = append(problems, &format.Error{Kind: format.ErrUsage, What: what, Found: found, Wanted: wanted})
	}
	n, group := *r, DefaultGroup
	if f.GroupSize != nil {
		group = *f.GroupSize
		if group != 0 && !slices.Contains(format.GroupSizes, group) {
			fail("--group-size", strconv.Itoa(group), fmt.Sprintf("0 (one scale a row) or one of %v", format.GroupSizes))
			group = DefaultGroup
		}
		n.each(func(c Choice) Choice {
			if c.Format == format.Int4Grouped {
				return grouped(group)
			}
			return c
		})
	}
	if f.Format != "" {
		c, err := parseChoice(f.Format, group)
		if err != nil || c.Drop {
			fail("--format", fmt.Sprintf("%q", f.Format), writable())
		}
		n.each(func(Choice) Choice { return c })
		n.Gate, n.Up, n.Down = nil, nil, nil
	}
	for _, b := range bitFlags {
		width, given := f.Bits[b.Name]
		if !given {
			continue
		}
		id, ok := bitWidths[width]
		if !ok {
			fail("--"+b.Name, strconv.Itoa(width), "16, 8, 4, 3 or 2")
			continue
		}
		c := Choice{Format: id}
		if id == format.Int4Grouped {
			c = grouped(group)
		}
		n.bits = append(slices.Clip(n.bits), b)
		if !n.setBits(b, c) {
			fail("--"+b.Name, "recipe "+r.Name+" leaves that out", "a recipe that keeps it")
		}
	}
	n.Overrides = slices.Clone(r.Overrides)
	for _, text := range f.Tensors {
		o, err := parseOverride(text, group)
		if err == nil && o.Choice.Drop {
			err = &format.Error{Kind: format.ErrUsage, What: fmt.Sprintf("tensor override %q", text), Found: "drop", Wanted: writable()}
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		n.Overrides = append(n.Overrides, o)
	}
	if err := problems.Err(); err != nil {
		return nil, err
	}
	return &n, nil
}

// each changes every choice that gives a format to matrices.
func (r *Recipe) each(change func(Choice) Choice) {
	for i := range r.Roles {
		if !r.Roles[i].Drop && !slices.Contains(exactRoles, Role(i)) {
			r.Roles[i] = change(r.Roles[i])
		}
	}
	if !r.MTP.Drop {
		r.MTP = change(r.MTP)
	}
	for _, p := range []**Choice{&r.Gate, &r.Up, &r.Down} {
		if *p != nil {
			c := change(**p)
			*p = &c
		}
	}
}

// setBits gives a choice to the roles of a flag that the recipe keeps and says
// whether there were any.
func (r *Recipe) setBits(b BitFlag, c Choice) (kept bool) {
	for _, role := range b.Roles {
		if !r.Roles[role].Drop {
			r.Roles[role], kept = c, true
		}
	}
	if b.MTP && !r.MTP.Drop {
		r.MTP, kept = c, true
	}
	if p := r.projection(b.Projection); p != nil && !r.Roles[Expert].Drop {
		*p, kept = &c, true
	}
	if slices.Contains(b.Roles, Expert) {
		r.Gate, r.Up, r.Down = nil, nil, nil
	}
	return kept
}

// takes says whether the flag is about a tensor.
func (b BitFlag) takes(w Want) bool {
	switch {
	case w.exact():
		return false
	case w.MTP:
		return b.MTP
	case w.InIndexer():
		return slices.Contains(b.Roles, Indexer)
	}
	return slices.Contains(b.Roles, w.Role) || w.Role == Expert && b.Projection != "" && projectionOf(w) == b.Projection
}

// projectionOf is "gate", "up" or "down" of a routed expert's tensor.
func projectionOf(w Want) string {
	_, last, _ := cutLast(strings.TrimSuffix(w.Name, ".weight"), ".")
	return strings.TrimSuffix(last, "_proj")
}

func (r *Recipe) projection(name string) **Choice {
	switch name {
	case "gate":
		return &r.Gate
	case "up":
		return &r.Up
	case "down":
		return &r.Down
	}
	return nil
}

// Choose is what becomes of a tensor, and which override decided it, if any.
func (r *Recipe) Choose(w Want) (Choice, *Override) {
	indexer := w.InIndexer()
	c := r.Roles[w.Role]
	switch {
	case indexer && r.Roles[Indexer].Drop, w.MTP && r.MTP.Drop:
		return choiceDrop, nil
	case w.MTP:
		c = r.MTP
	case indexer:
		c = r.Roles[Indexer]
	case c.Drop:
		return choiceDrop, nil
	case w.Role == Expert:
		if p := r.projection(projectionOf(w)); p != nil && *p != nil {
			c = **p
		}
	}
	exact := w.exact()
	if exact {
		c = choiceF32
	}
	for i := len(r.Overrides) - 1; i >= 0; i-- {
		o := &r.Overrides[i]
		if exact && o.Choice.Format.Info().Packed {
			continue
		}
		if o.Match.MatchString(w.Name) {
			return o.Choice, o
		}
	}
	return c, nil
}

// exact says whether the tensor is kept as plain floats whatever is asked for.
func (w Want) exact() bool { return !w.Matrix() || slices.Contains(exactRoles, w.Role) }

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}
