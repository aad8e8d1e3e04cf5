package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"hawkmoth/cmd/internal/cli"
	"hawkmoth/format"
	"hawkmoth/quantize"
)

// pageMap makes the map: a row for every layer, a column for every role that
// some layer has.
func (r *Report) pageMap(p *page) {
	used := map[string]bool{}
	for _, x := range r.Layers {
		for _, c := range x.Roles {
			used[c.Role] = used[c.Role] || c.text() != absent || c.Role != quantize.Embed.String() && c.Role != quantize.Head.String()
		}
	}
	for _, role := range quantize.Roles() {
		if used[role.String()] {
			p.Roles = append(p.Roles, role.String())
		}
	}
	for _, x := range r.Placements {
		p.Marks = append(p.Marks, x.By)
	}
	for _, f := range r.Formats {
		p.Data.Formats = append(p.Data.Formats, f.Format)
	}
	p.Data.Errors = r.Against != nil
	colour := r.palette()
	for _, x := range r.Layers {
		row := pageRow{Layer: x.Layer, Label: fmt.Sprint(x.Layer), Bytes: cli.Bytes(x.Bytes)}
		if x.Layer < 0 {
			row.Label = "outside"
		}
		if x.MTP {
			row.Label += " MTP"
		}
		for _, role := range p.Roles {
			i := slices.IndexFunc(x.Roles, func(c LayerRole) bool { return c.Role == role })
			if i < 0 {
				row.Cells = append(row.Cells, pageCell{Role: role, Class: "none"})
				continue
			}
			row.Cells = append(row.Cells, r.pageCell(p, &x, &x.Roles[i], colour))
		}
		p.Rows = append(p.Rows, row)
	}
}

func (r *Report) pageCell(p *page, layer *Layer, c *LayerRole, colour map[string]string) pageCell {
	where := fmt.Sprintf("layer %d", layer.Layer)
	if layer.Layer < 0 {
		where = outside
	}
	cell := pageCell{Role: c.Role, Text: c.text(), Title: where + ", " + c.Role + ": " + c.text()}
	if len(c.found) == 0 {
		cell.Class = absent
		if c.Missing > 0 {
			cell.Class = "missing"
		}
		return cell
	}
	var params int64
	for _, f := range c.found {
		params += paramsOf(f)
	}
	d := cellData{Title: cell.Title, Text: cell.Text, Size: cli.Bytes(c.Bytes), Bytes: c.Bytes, Bits: 8 * float64(c.Bytes) / float64(params), Error: c.Error}
	d.Colour = colour[c.Formats[0].Format]
	if n := len(c.Formats); n > 1 {
		stripes := ""
		for i, f := range c.Formats {
			stripes += fmt.Sprintf(", %s %d%%, %s %d%%", colour[f.Format], 100*i/n, colour[f.Format], 100*(i+1)/n)
		}
		d.Colour = "linear-gradient(90deg" + stripes + ")"
	}
	if c.Missing > 0 {
		d.Colour = "#e5766b"
		d.Notes = append(d.Notes, plural(c.Missing, "tensor")+" of this role missing or wrong, see the problems")
	}
	r.marks(p, layer, c, &cell, &d)
	r.cellTensors(p, c, &d)
	cell.Colour, cell.ID = template.CSS(d.Colour), len(p.Data.Cells)
	cell.Title += ", " + d.Size
	if d.Error != nil {
		cell.Title += ", error " + cli.RelativeError(*d.Error)
	}
	p.Data.Cells = append(p.Data.Cells, d)
	return cell
}

// marks puts on a cell what keeps it from the GPU, the gravest state of each
// placement.
func (r *Report) marks(p *page, layer *Layer, c *LayerRole, cell *pageCell, d *cellData) {
	for i, x := range r.Placements {
		state := x.state(layer, c.Role)
		for _, path := range x.Paths {
			for _, why := range path.Reasons {
				if why.Role != c.Role || !why.layers[layer.Layer] || layer.MTP {
					continue
				}
				note := fmt.Sprintf("%s, %s: %s", x.By, path.Path, why.Why)
				if why.Cure != "" {
					note += "; cure: " + why.Cure
				}
				d.Notes = append(d.Notes, note)
			}
		}
		if state != "" {
			cell.Marks = append(cell.Marks, pageMark{i, state})
			p.AnyMark = true
		}
	}
}

// cellTensors lists the tensors of a cell: one by one where each has an error
// of its own, else those that differ in numbers only on a line.
func (r *Report) cellTensors(p *page, c *LayerRole, d *cellData) {
	d.Prefix = c.found[0].Name
	for _, f := range c.found {
		for !strings.HasPrefix(f.Name, d.Prefix) {
			d.Prefix = d.Prefix[:strings.LastIndex(strings.TrimSuffix(d.Prefix, "."), ".")+1]
		}
	}
	if d.Prefix == c.found[0].Name {
		d.Prefix = ""
	}
	if r.Against != nil {
		for _, f := range c.found {
			line := []any{f.Name[len(d.Prefix):], slices.Index(p.Data.Formats, f.Spec.Name()), cli.Bytes(bytesOf(f)), nil}
			if e := r.errorOf(f.Name); e != nil {
				line[3] = *e
			}
			d.Tensors = append(d.Tensors, line)
		}
		return
	}
	type kind struct {
		format string
		bytes  int64
	}
	names := map[kind][]string{}
	var order []kind
	for _, f := range c.found {
		k := kind{f.Spec.Name(), bytesOf(f)}
		if names[k] == nil {
			order = append(order, k)
		}
		names[k] = append(names[k], f.Name[len(d.Prefix):])
	}
	for _, k := range order {
		for _, line := range format.Collapse(names[k]) {
			d.Tensors = append(d.Tensors, []any{line, slices.Index(p.Data.Formats, k.format), cli.Bytes(k.bytes) + " each"})
		}
	}
}
