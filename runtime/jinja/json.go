package jinja

import (
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// DecodeJSON reads one JSON value; objects keep the order of their keys.
func DecodeJSON(data []byte) (Value, error) {
	dec := jsontext.NewDecoder(strings.NewReader(string(data)))
	v, err := decode(dec)
	if err != nil {
		return nil, err
	}
	if _, err := dec.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, errors.New("more than one JSON value")
	}
	return v, nil
}

func decode(dec *jsontext.Decoder) (Value, error) {
	tok, err := dec.ReadToken()
	if err != nil {
		return nil, err
	}
	switch tok.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return tok.Bool(), nil
	case '"':
		return tok.String(), nil
	case '0':
		s := tok.String()
		if n, err := strconv.ParseInt(s, 10, 64); err == nil {
			return n, nil
		}
		return strconv.ParseFloat(s, 64)
	case '[':
		l := NewList()
		for dec.PeekKind() != ']' {
			v, err := decode(dec)
			if err != nil {
				return nil, err
			}
			l.Items = append(l.Items, v)
		}
		_, err = dec.ReadToken()
		return l, err
	}
	d := NewDict()
	for dec.PeekKind() != '}' {
		key, err := dec.ReadToken()
		if err != nil {
			return nil, err
		}
		name := key.String()
		v, err := decode(dec)
		if err != nil {
			return nil, err
		}
		d.Set(name, v)
	}
	_, err = dec.ReadToken()
	return d, err
}

// EncodeJSON is Python's json.dumps(v, ensure_ascii=False).
func EncodeJSON(v Value) (string, error) {
	w := jsonWriter{item: ", ", key: ": ", e: newEval(v)}
	err := w.write(v, 0)
	return w.b.String(), err
}

// jsonWriter is json.dumps with its options.
type jsonWriter struct {
	b         strings.Builder
	item, key string
	indent    string // of a level
	lines     bool   // a line for each item
	ascii     bool
	sorted    bool
	e         *eval // pays for it
}

func (w *jsonWriter) newline(depth int) {
	if w.lines {
		w.b.WriteString("\n" + strings.Repeat(w.indent, depth))
	}
}

func (w *jsonWriter) write(v Value, depth int) error {
	if err := w.e.within(depth); err != nil {
		return err
	}
	if w.b.Len() > w.e.bytes {
		return errBudget
	}
	switch v := v.(type) {
	case nil:
		w.b.WriteString("null")
	case bool:
		w.b.WriteString(strconv.FormatBool(v))
	case int64:
		w.b.WriteString(strconv.FormatInt(v, 10))
	case float64:
		w.b.WriteString(jsonFloat(v))
	case string:
		w.string(v)
	case *List:
		if len(v.Items) == 0 {
			w.b.WriteString("[]")
			return nil
		}
		w.b.WriteByte('[')
		for i, x := range v.Items {
			if i > 0 {
				w.b.WriteString(w.item)
			}
			w.newline(depth + 1)
			if err := w.write(x, depth+1); err != nil {
				return err
			}
		}
		w.newline(depth)
		w.b.WriteByte(']')
	case *Dict:
		if len(v.keys) == 0 {
			w.b.WriteString("{}")
			return nil
		}
		keys := v.keys
		if w.sorted {
			var err error
			if keys, err = w.e.sorted(keys, false, true); err != nil {
				return err
			}
		}
		w.b.WriteByte('{')
		for i, k := range keys {
			if i > 0 {
				w.b.WriteString(w.item)
			}
			w.newline(depth + 1)
			switch k := k.(type) {
			case string:
				w.string(k)
			default: // numbers, bools and None become strings
				w.b.WriteByte('"')
				if err := w.write(k, depth+1); err != nil {
					return err
				}
				w.b.WriteByte('"')
			}
			w.b.WriteString(w.key)
			x, _ := v.Get(k)
			if err := w.write(x, depth+1); err != nil {
				return err
			}
		}
		w.newline(depth)
		w.b.WriteByte('}')
	default:
		return fmt.Errorf("Object of type %s is not JSON serializable", typeName(v)) //nolint:staticcheck // Python's words
	}
	return nil
}

func jsonFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	return floatText(f)
}

// string escapes as json.dumps does: no HTML, no U+2028, DEL as it is.
func (w *jsonWriter) string(s string) {
	w.b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.b.WriteByte('\\')
			w.b.WriteRune(r)
		case r == '\n':
			w.b.WriteString(`\n`)
		case r == '\r':
			w.b.WriteString(`\r`)
		case r == '\t':
			w.b.WriteString(`\t`)
		case r == '\f':
			w.b.WriteString(`\f`)
		case r == '\b':
			w.b.WriteString(`\b`)
		case r < ' ' || w.ascii && r > 0x7e && r < 0x10000:
			fmt.Fprintf(&w.b, `\u%04x`, r)
		case w.ascii && r >= 0x10000:
			r -= 0x10000
			fmt.Fprintf(&w.b, `\u%04x\u%04x`, 0xd800+r>>10, 0xdc00+r&0x3ff)
		default:
			w.b.WriteRune(r)
		}
	}
	w.b.WriteByte('"')
}
