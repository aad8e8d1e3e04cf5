package report

import (
	"os"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// paths lists every field of the JSON of a type as "a.b[].c type".
func paths(prefix string, t reflect.Type) []string {
	var list []string
	for i := range t.NumField() {
		f := t.Field(i)
		if !f.IsExported() {
			continue
		}
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if f.Anonymous {
			list = append(list, paths(prefix, f.Type)...)
			continue
		}
		ft, path := f.Type, prefix+name
		optional := ""
		if options == "omitempty" {
			optional = "?"
		}
		if ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		if ft.Kind() == reflect.Slice {
			ft, path = ft.Elem(), path+"[]"
		}
		if ft.Kind() == reflect.Struct {
			list = append(list, path+" object"+optional)
			list = append(list, paths(path+".", ft)...)
			continue
		}
		kind := map[reflect.Kind]string{reflect.String: "string", reflect.Int: "integer", reflect.Int64: "integer", reflect.Float64: "number", reflect.Bool: "boolean"}[ft.Kind()]
		list = append(list, path+" "+kind+optional)
	}
	return list
}

// TestSchemaIsDocumented holds docs/report.md and the structs together: a field
// cannot change unnoticed by the page, nor without a look at the version.
func TestSchemaIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../../../docs/report.md")
	if err != nil {
		t.Fatal(err)
	}
	report, diff, ok := strings.Cut(string(page), "\n## inspect diff\n")
	if !ok {
		t.Fatal("no part about inspect diff")
	}
	for _, tt := range []struct {
		name, text string
		schema     int
		of         reflect.Type
	}{{"report", report, Schema, reflect.TypeFor[Report]()}, {"diff", diff, DiffSchema, reflect.TypeFor[Diff]()}} {
		t.Run(tt.name, func(t *testing.T) {
			if !strings.Contains(tt.text, "`schema` is "+strconv.Itoa(tt.schema)) {
				t.Errorf("the page does not speak of schema %d", tt.schema)
			}
			var documented []string
			for line := range strings.Lines(tt.text) {
				cells := strings.Split(line, "|")
				if len(cells) < 5 || !strings.HasPrefix(cells[1], " `") {
					continue
				}
				if strings.TrimSpace(cells[3]) == "" {
					t.Errorf("no meaning: %s", line)
				}
				documented = append(documented, strings.Trim(cells[1], " `")+" "+strings.TrimSpace(cells[2]))
			}
			want := paths("", tt.of)
			if slices.Equal(documented, want) {
				return
			}
			for _, p := range want {
				if !slices.Contains(documented, p) {
					t.Errorf("not on the page: %s", p)
				}
			}
			for _, p := range documented {
				if !slices.Contains(want, p) {
					t.Errorf("not in the struct: %s", p)
				}
			}
			if !t.Failed() {
				t.Error("the page has another order than the struct")
			}
		})
	}
}
