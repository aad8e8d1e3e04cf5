package format

import (
	"fmt"
	"maps"
	"strings"
	"testing"
)

func TestStampsAreReadBack(t *testing.T) {
	specs := map[string]Spec{
		"a":   {Int4Grouped, 8, 128, 64},
		"b":   {Int4Grouped, 8, 96, 64}, // read as 48 without a stamp
		"c":   {Int8Row, 8, 128, 0},
		"d":   {FP8, 2, 256, 0}, // read as int8-row without a stamp
		"é\n": {Int2Row, 8, 128, 0},
		"f":   {BF16, 8, 128, 0},
		"g":   {Int4Grouped, 8, 32, 64}, // one group a row
	}
	meta := StampMetadata(specs)
	stamps, err := ParseStamps(meta)
	want := map[string]Stamp{"a": {Int4Grouped, 64}, "b": {Int4Grouped, 64}, "c": {Int8Row, 0}, "d": {FP8, 0}, "é\n": {Int2Row, 0}, "g": {Int4Row, 0}}
	if err != nil || !maps.Equal(stamps, want) {
		t.Errorf("%v, %v, wanted %v", stamps, err, want)
	}
	if got := meta[KeyColibri]; got != `{"b":"int4-grouped","d":"fp8-e4m3-b128"}` {
		t.Errorf("%s is %s, wanted the ambiguous ones alone", KeyColibri, got)
	}
	if got := meta[KeyUsed]; got != `["fp8-e4m3-b128","int2-row","int4-grouped","int4-row","int8-row"]` {
		t.Errorf("%s is %s", KeyUsed, got)
	}
	if got := meta[KeyGroups]; got != `{"a":64,"b":64}` {
		t.Errorf("%s is %s", KeyGroups, got)
	}
	for range 8 {
		if !maps.Equal(StampMetadata(specs), meta) {
			t.Fatal("stamps are not deterministic")
		}
	}
	if meta := StampMetadata(map[string]Spec{"f": {BF16, 8, 128, 0}}); len(meta) != 0 {
		t.Errorf("plain tensors are stamped: %v", meta)
	}
}

func TestStampsOfEveryFormatAreReadBack(t *testing.T) {
	for _, s := range packedSpecs(7, 300) {
		stamps, err := ParseStamps(StampMetadata(map[string]Spec{"w": s}))
		if got := stamps["w"]; err != nil || got.Format != s.Format || got.Group != s.Group {
			t.Errorf("%v: %v, %v", s, got, err)
		}
	}
}

// TestStampsStayUnderTheLimitOfColibri: the engine refuses a snapshot of more
// than 4096 claims, and a large mixture of experts has ten times that many matrices.
func TestStampsStayUnderTheLimitOfColibri(t *testing.T) {
	specs := map[string]Spec{}
	for i := range 20000 {
		specs[fmt.Sprintf("model.layers.3.mlp.experts.%d.up_proj.weight", i)] = Spec{Int4Grouped, 2048, 6144, 64}
	}
	meta := StampMetadata(specs)
	if _, ok := meta[KeyColibri]; ok {
		t.Error("matrices that need no stamp are claimed in colibri's key")
	}
	stamps, err := ParseStamps(meta)
	if err != nil || len(stamps) != len(specs) {
		t.Errorf("%d stamps, %v", len(stamps), err)
	}
}

func TestD16MetadataValues(t *testing.T) {
	var many strings.Builder
	for i := range MaxClaims + 1 {
		fmt.Fprintf(&many, `,"t%d":"int8-row"`, i)
	}
	for _, c := range []struct {
		name, key, value string
		words            []string
	}{
		{"not JSON", KeyColibri, "int8-row", []string{"not a JSON object"}},
		{"empty", KeyColibri, "", []string{"not a JSON object"}},
		{"array", KeyColibri, `["w"]`, []string{"not a JSON object"}},
		{"string", KeyColibri, `"w"`, []string{"not a JSON object"}},
		{"cut off", KeyColibri, `{"w":"int8-row"`, []string{"not a JSON object"}},
		{"more after it", KeyColibri, `{"w":"int8-row"}{}`, []string{"bytes after the object"}},
		{"value is a number", KeyColibri, `{"w":1}`, []string{"w: ", "not a string"}},
		{"value is an object", KeyColibri, `{"w":{}}`, []string{"w: ", "not a string"}},
		{"value is null", KeyFormats, `{"w":null}`, []string{"w: ", "not a string"}},
		{"unknown format", KeyColibri, `{"w":"int5-row"}`, []string{"w: ", "unknown format", `"int5-row"`}},
		{"ordinal", KeyColibri, `{"w":"1"}`, []string{"w: ", "unknown format"}},
		{"two claims", KeyColibri, `{"w":"int8-row","w":"int4-row"}`, []string{"w: ", "different claim", "int8-row and int4-row"}},
		{"too many", KeyColibri, "{" + many.String()[1:] + "}", []string{"more than 4096 entries"}},
		{"group of text", KeyGroups, `{"w":"64"}`, []string{"w: ", "group size"}},
		{"group not in the list", KeyGroups, `{"w":40}`, []string{"w: ", "group size", "40"}},
		{"group too large", KeyGroups, `{"w":4294967360}`, []string{"w: ", "group size"}},
		{"group of a fraction", KeyGroups, `{"w":64.0}`, []string{"w: ", "group size"}},
		{"groups not an object", KeyGroups, `64`, []string{"not a JSON object"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseStamps(map[string]string{c.key: c.value})
			wantError(t, err, ErrCorrupt, append(c.words, c.key)...)

			path := writeShard(t, t.TempDir()+"/out-00000.safetensors", map[string]string{c.key: c.value}, pair("w", Spec{Int8Row, 2, 3, 0})...)
			_, err = Open(path)
			wantError(t, err, ErrCorrupt, append(c.words, "out-00000.safetensors")...)
		})
	}
	for _, meta := range []map[string]string{
		nil,
		{"format": "pt"},
		{KeyColibri: "{}"},
		{KeyColibri: ` { "w" : "int8-row" } ` + "\n"},
		{KeyColibri: `{"w":"int8-row","w":"int8-row"}`},
		{KeyColibri: `{"w":"int4-grouped"}`, KeyFormats: `{"w":"int4-grouped"}`, KeyGroups: `{"w":64,"w":64,"x":32}`},
		{KeyUsed: "whatever"},
	} {
		if _, err := ParseStamps(meta); err != nil {
			t.Errorf("%v: %v", meta, err)
		}
	}
	_, err := ParseStamps(map[string]string{KeyColibri: `{"w":"int8-row"}`, KeyFormats: `{"w":"int4-row"}`})
	wantError(t, err, ErrCorrupt, "w: ", "different claim")
	_, err = ParseStamps(map[string]string{KeyFormats: `{"w":"int4-grouped"}`, KeyGroups: `{"w":64,"w":32}`})
	wantError(t, err, ErrCorrupt, "w: ", "64 and 32")
	_, err = ParseStamps(map[string]string{KeyFormats: `{"w":"int8-row"}`, KeyGroups: `{"w":64}`})
	wantError(t, err, ErrCorrupt, "w: ", "without groups", "int8-row")
	_, err = ParseStamps(map[string]string{KeyFormats: `{"a":1,"b":"x","c":"int8-row"}`})
	wantError(t, err, ErrCorrupt, "a: ", "b: ")
}

func TestD16MetadataThatIsNotAString(t *testing.T) {
	for _, value := range []string{`{"w":"int8-row"}`, "1", "[]", "true"} {
		h := `{"__metadata__":{"colibri.fmt":` + value + `},` + entryJSON("w", "U8", "[1]", 0, 1) + "}"
		_, err := openBytes(t, fileBytes(h, 1))
		wantError(t, err, ErrCorrupt, "model.safetensors", "colibri.fmt", "not a string")
	}
}
