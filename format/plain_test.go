package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp/syntax"
	"strconv"
	"testing"

	jsonv2 "github.com/go-json-experiment/json"
)

// TestPlain: what the Go library says is said in our words, wherever it stands
// in an error.
func TestPlain(t *testing.T) {
	v1 := func(text string, v any) error { return json.Unmarshal([]byte(text), v) }
	v2 := func(text string, v any) error {
		return jsonv2.Unmarshal([]byte(text), v, jsonv2.RejectUnknownMembers(true))
	}
	type object struct {
		A []int          `json:"a"`
		B map[string]int `json:"b"`
	}
	number := func(text string) error { _, err := strconv.ParseInt(text, 10, 32); return err }
	_, pattern := syntax.Parse("a[", syntax.Perl)
	missing := filepath.Join(t.TempDir(), "nowhere")
	_, open := os.ReadFile(missing)
	_, stat := os.Stat(missing)
	_, list := os.ReadDir(missing)
	gone := missing + ": cannot open: no such file or directory"
	for _, tt := range []struct {
		err  error
		want string
	}{
		{number("x"), `"x" is not a number`},
		{number("99999999999"), `"99999999999" is out of range`},
		{v1("[]", &map[string]int{}), "must be an object, not a list"},
		{v1(`{"a":7}`, &object{}), `key "a": must be a list, not a number`},
		{v1(`{"a":`, &object{}), "not JSON, it ends too early"},
		{v1("<html>", &object{}), "not JSON at byte 1"},
		{v2("[]", &object{}), "must be an object, not a list"},
		{v2(`{"b":{"x":"y"}}`, &object{}), `key "b.x" must be a whole number, not a string`},
		{v2(`{"c":1}`, &object{}), `key "c" is not known`},
		{v2(`{"a":[],"a":[]}`, &object{}), `duplicate key "a"`},
		{v2(`{"a":`, &object{}), "not JSON, it ends too early"},
		{v2("<html>", &object{}), "not JSON at byte 0"},
		{pattern, `not a regular expression: missing closing ] in "["`},
		{open, gone}, {stat, gone}, {list, gone},
		{fmt.Errorf("reading: %w", open), "reading: " + gone},
		{&Error{What: "--recipe", Err: open}, "--recipe: " + gone},
		{&Error{Path: missing, What: "not a recipe", Err: number("x")}, missing + `: not a recipe: "x" is not a number`},
		{&Error{Path: missing, What: "cannot be examined", Err: stat}, missing + ": cannot be examined: cannot open: no such file or directory"},
		{Problems{open, &Error{What: "b", Err: number("y")}}, gone + "\n" + `b: "y" is not a number`},
		{os.Mkdir(filepath.Join(missing, "x"), 0o755), filepath.Join(missing, "x") + ": cannot make the directory: no such file or directory"},
		{os.Rename(missing, missing+"2"), missing + "2: cannot rename: no such file or directory"},
		{errors.New("as it is"), "as it is"},
		{fs.ErrClosed, fs.ErrClosed.Error()},
	} {
		if got := Plain(tt.err); got != tt.want {
			t.Errorf("%v: %s, want %s", tt.err, got, tt.want)
		}
	}
}
