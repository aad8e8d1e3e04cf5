package format

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"reflect"
	"regexp/syntax"
	"strconv"
	"strings"

	jsonv2 "github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Plain is an error in our words, whoever made it: what the parsers and the
// file system of the Go library say is meant for programmers.
func Plain(err error) string {
	text := err.Error()
	for _, say := range []func(error) (ours string, theirs error){plainFile, plainJSON, plainNumber, plainPattern} {
		if ours, theirs := say(err); theirs != nil {
			return strings.ReplaceAll(text, theirs.Error(), ours)
		}
	}
	return text
}

// fileOps are the operations that os names, as a sentence has them.
var fileOps = map[string]string{"stat": "open", "lstat": "open", "readdirent": "read", "readlink": "read", "fstat": "read", "mkdir": "make the directory", "unlinkat": "remove", "fsync": "write", "truncate": "write"}

func plainFile(err error) (ours string, theirs error) {
	var path *fs.PathError
	var link *os.LinkError
	say := func(op, path string, cause error) string {
		if ours := fileOps[op]; ours != "" {
			op = ours
		}
		return fileError(path, "cannot "+op, cause).Error()
	}
	switch {
	case errors.As(err, &path):
		return say(path.Op, path.Path, path.Err), path
	case errors.As(err, &link):
		return say(link.Op, link.New, link.Err), link
	}
	return "", nil
}

func plainNumber(err error) (ours string, theirs error) {
	var n *strconv.NumError
	if !errors.As(err, &n) {
		return "", nil
	}
	if errors.Is(n.Err, strconv.ErrRange) {
		return fmt.Sprintf("%q is out of range", n.Num), n
	}
	return fmt.Sprintf("%q is not a number", n.Num), n
}

func plainPattern(err error) (ours string, theirs error) {
	var p *syntax.Error
	if !errors.As(err, &p) {
		return "", nil
	}
	return fmt.Sprintf("not a regular expression: %s in %q", p.Code, p.Expr), p
}

func plainJSON(err error) (ours string, theirs error) {
	var (
		v1       *json.SyntaxError
		kind     *json.UnmarshalTypeError
		text     *jsontext.SyntacticError
		semantic *jsonv2.SemanticError
	)
	switch {
	case errors.As(err, &semantic):
		where := pointer(semantic.JSONPointer)
		if errors.As(semantic.Err, &text) {
			return plainSyntax(text), semantic
		}
		if errors.Is(semantic.Err, jsonv2.ErrUnknownName) {
			return where + "is not known", semantic
		}
		found := map[jsontext.Kind]string{'n': "null", 't': "true", 'f': "false", '"': "a string", '0': "a number", '{': "an object", '[': "a list"}[semantic.JSONKind]
		return where + foundWanted(found, semantic.GoType), semantic
	case errors.As(err, &text):
		return plainSyntax(text), text
	case errors.As(err, &kind):
		found := map[string]string{"object": "an object", "array": "a list", "bool": "true or false"}[kind.Value]
		if found == "" {
			found = "a " + kind.Value
		}
		where := ""
		if kind.Field != "" {
			where = fmt.Sprintf("key %q: ", kind.Field)
		}
		return where + foundWanted(found, kind.Type), kind
	case errors.As(err, &v1):
		if strings.Contains(v1.Error(), "unexpected end") {
			return "not JSON, it ends too early", v1
		}
		return fmt.Sprintf("not JSON at byte %d", v1.Offset), v1
	}
	return "", nil
}

func plainSyntax(err *jsontext.SyntacticError) string {
	switch {
	case errors.Is(err, jsontext.ErrDuplicateName):
		return strings.TrimSpace("duplicate " + pointer(err.JSONPointer))
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "not JSON, it ends too early"
	}
	return fmt.Sprintf("not JSON at byte %d", err.ByteOffset)
}

// pointer names a place in a document, with a space behind it.
func pointer(p jsontext.Pointer) string {
	if p == "" {
		return ""
	}
	var keys []string
	for key := range p.Tokens() {
		keys = append(keys, key)
	}
	name := strings.Join(keys, ".")
	if len(name) > maxText {
		name = clean(name)
	}
	return fmt.Sprintf("key %q ", name)
}

func foundWanted(found string, wanted reflect.Type) string {
	name := ""
	if wanted != nil {
		for wanted.Kind() == reflect.Pointer {
			wanted = wanted.Elem()
		}
		switch k := wanted.Kind(); {
		case k == reflect.String:
			name = "a string"
		case k == reflect.Bool:
			name = "true or false"
		case k == reflect.Slice, k == reflect.Array:
			name = "a list"
		case k == reflect.Map, k == reflect.Struct:
			name = "an object"
		case k >= reflect.Int && k <= reflect.Uintptr:
			name = "a whole number"
		case k == reflect.Float32, k == reflect.Float64:
			name = "a number"
		}
	}
	switch {
	case found == "":
		return "is not " + name
	case name == "":
		return "must not be " + found
	}
	return "must be " + name + ", not " + found
}
