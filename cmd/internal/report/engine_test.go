package report

import (
	"slices"
	"strings"
	"testing"

	"hawkmoth/format"
	"hawkmoth/quantize"
)

// TestEngineData checks the profiles: names that exist, sources, and cures
// that pass the gates that ask for them.
func TestEngineData(t *testing.T) {
	list, err := engines()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(Engines(), []string{"colibri-1.6", "colibri-1.12"}) {
		t.Errorf("%v", Engines())
	}
	var roles, formats []string
	for _, r := range quantize.Roles() {
		roles = append(roles, r.String())
	}
	for _, f := range format.Formats() {
		formats = append(formats, f.Name)
	}
	for _, e := range list {
		known := func(where string, names, of []string) {
			for _, n := range names {
				if !slices.Contains(of, n) {
					t.Errorf("%s, %s: no %q", e.Name, where, n)
				}
			}
		}
		known("formats", e.Formats, formats)
		if e.Source == "" || len(e.Paths) < 4 || len(e.ModelTypes) == 0 || !strings.Contains(e.Source, strings.TrimPrefix(e.Name, "colibri-")) {
			t.Errorf("%+v", e)
		}
		for _, p := range e.Paths {
			for _, g := range p.Gates {
				known(p.Path, g.Roles, roles)
				known(p.Path, g.Formats, e.Formats)
				if g.Cure != "" && !slices.Contains(g.Formats, cureFormat(t, g.Cure)) {
					t.Errorf("%s, %s: the cure %q does not pass", e.Name, p.Path, g.Cure)
				}
				if len(g.Formats) > 0 != (g.Cure != "") {
					t.Errorf("%s, %s: %+v", e.Name, p.Path, g)
				}
			}
			if len(p.Dims) > 0 && (p.Dims["hidden"] != 6144 || p.Dims["kv_lora"] != 512) {
				t.Errorf("%s, %s: %v", e.Name, p.Path, p.Dims)
			}
		}
		for _, m := range e.Misreads {
			var paths []string
			for _, p := range e.Paths {
				paths = append(paths, p.Path)
			}
			known("misreads", m.Paths, paths)
			if len(m.Paths) == 0 {
				t.Errorf("%s: %q goes wrong nowhere", e.Name, m.Text)
			}
			known("misreads", m.Roles, roles)
			known("misreads", m.Formats, formats)
			if slices.Contains(m.Formats, cureFormat(t, m.Cure)) {
				t.Errorf("%s: %q cures nothing", e.Name, m.Cure)
			}
		}
	}
}

// cureFormat is the format that arguments of convert overlay ask for.
func cureFormat(t *testing.T, cure string) string {
	t.Helper()
	words := strings.Fields(cure)
	i := slices.Index(words, "--format")
	if i < 0 || i+1 == len(words) {
		t.Fatalf("no format in %q", cure)
	}
	choice := words[i+1]
	if j := slices.Index(words, "--group-size"); j >= 0 {
		choice += "/" + words[j+1]
	}
	id, _, err := format.ParseFormat(choice)
	if err != nil {
		t.Fatal(err)
	}
	return id.String()
}
