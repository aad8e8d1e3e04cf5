package jinja

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// strip takes white space, or any of chars, off the ends.
func strip(s string, chars Value, left, right bool) (Value, error) {
	is := space
	switch chars := chars.(type) {
	case nil:
	case string:
		is = func(r rune) bool { return strings.ContainsRune(chars, r) }
	default:
		return nil, fmt.Errorf("strip arg must be None or str, not %s", typeName(chars))
	}
	if left {
		s = strings.TrimLeftFunc(s, is)
	}
	if right {
		s = strings.TrimRightFunc(s, is)
	}
	return s, nil
}

func words(s string) []string { return strings.FieldsFunc(s, space) }

func split(fromRight bool) stringMethod {
	return func(e *eval, s string, a *args) (Value, error) {
		limit, ok := a.at(1, "maxsplit", int64(-1)).(int64)
		if !ok {
			return nil, errors.New("maxsplit must be an integer")
		}
		var parts []string
		cut := func(index func(string) (int, int)) {
			rest := s
			for limit != 0 {
				i, n := index(rest)
				if i < 0 {
					break
				}
				if fromRight {
					parts, rest = append(parts, rest[i+n:]), rest[:i]
				} else {
					parts, rest = append(parts, rest[:i]), rest[i+n:]
				}
				limit--
			}
			if parts = append(parts, rest); fromRight {
				slices.Reverse(parts)
			}
		}
		switch sep := a.at(0, "sep", nil).(type) {
		case nil:
			if limit < 0 {
				parts = words(s)
				break
			}
			return splitWords(s, limit, fromRight), nil
		case string:
			if sep == "" {
				return nil, errors.New("empty separator")
			}
			index := strings.Index
			if fromRight {
				index = strings.LastIndex
			}
			cut(func(s string) (int, int) { return index(s, sep), len(sep) })
		default:
			return nil, fmt.Errorf("must be str or None, not %s", typeName(sep))
		}
		return texts(parts), e.list(len(parts))
	}
}

func texts(parts []string) *List {
	l := &List{Items: make([]Value, len(parts))}
	for i, p := range parts {
		l.Items[i] = p
	}
	return l
}

// splitWords cuts at white space at most limit times.
func splitWords(s string, limit int64, fromRight bool) *List {
	var parts []string
	for {
		if fromRight {
			s = strings.TrimRightFunc(s, space)
		} else {
			s = strings.TrimLeftFunc(s, space)
		}
		if s == "" {
			break
		}
		i := strings.IndexFunc(s, space)
		if fromRight {
			i = strings.LastIndexFunc(s, space)
		}
		if i < 0 || limit == 0 {
			parts = append(parts, s)
			break
		}
		if fromRight {
			_, n := utf8.DecodeRuneInString(s[i:])
			parts, s = append(parts, s[i+n:]), s[:i]
		} else {
			parts, s = append(parts, s[:i]), s[i:]
		}
		limit--
	}
	if fromRight {
		slices.Reverse(parts)
	}
	return texts(parts)
}

func splitlines(e *eval, s string, a *args) (Value, error) {
	keep := truth(a.at(0, "keepends", false))
	var parts []string
	for s != "" {
		i := strings.IndexFunc(s, func(r rune) bool {
			return r >= '\n' && r <= '\r' || r >= 0x1c && r <= 0x1e || r == 0x85 || r == 0x2028 || r == 0x2029
		})
		if i < 0 {
			parts = append(parts, s)
			break
		}
		_, n := utf8.DecodeRuneInString(s[i:])
		if strings.HasPrefix(s[i:], "\r\n") {
			n = 2
		}
		line := s[:i]
		if keep {
			line = s[:i+n]
		}
		parts, s = append(parts, line), s[i+n:]
	}
	return texts(parts), e.list(len(parts))
}

func (e *eval) replace(s, old, with string, limit Value) (Value, error) {
	n := int64(-1)
	if limit != nil {
		var ok bool
		if n, ok = limit.(int64); !ok {
			return nil, errors.New("replace() takes an integer as count")
		}
	}
	times := strings.Count(s, old)
	if n >= 0 {
		times = int(min(int64(times), n))
	}
	if grow := len(with) - len(old); grow > 0 && times > e.bytes/grow {
		return nil, errBudget
	}
	if err := e.make(len(s) + times*max(0, len(with)-len(old))); err != nil {
		return nil, err
	}
	return strings.Replace(s, old, with, times), nil
}

// pad fills s up to a width: side 0 before it, 1 after it, 2 both.
func (e *eval) pad(s string, width Value, fill string, side int) (Value, error) {
	w, ok := width.(int64)
	if !ok {
		return nil, fmt.Errorf("'%s' object cannot be interpreted as an integer", typeName(width))
	}
	n := w - int64(count(s))
	if n <= 0 {
		return s, nil
	}
	v, _, err := e.repeat(fill, n)
	if err != nil {
		return nil, err
	}
	switch side {
	case 0:
		return v.(string) + s, nil
	case 1:
		return s + v.(string), nil
	}
	left := n/2 + n&w&1 // as Python divides what does not divide
	return strings.Repeat(fill, int(left)) + s + strings.Repeat(fill, int(n-left)), nil
}

func capitalize(s string) string {
	_, n := utf8.DecodeRuneInString(s)
	return strings.ToUpper(s[:n]) + strings.ToLower(s[n:])
}

// title is str.title: letters that follow no letter are capitals.
func title(s string) string {
	inWord := false
	return strings.Map(func(r rune) rune {
		was := inWord
		inWord = unicode.IsLetter(r)
		if was {
			return unicode.ToLower(r)
		}
		return unicode.ToTitle(r)
	}, s)
}

// titleFilter is the filter: words begin after white space and opening brackets.
func titleFilter(s string) string {
	start := true
	return strings.Map(func(r rune) rune {
		was := start
		start = space(r) || strings.ContainsRune("-({[<", r)
		if was && !start {
			return unicode.ToUpper(r)
		}
		return unicode.ToLower(r)
	}, s)
}

func swapcase(s string) string {
	return strings.Map(func(r rune) rune {
		if unicode.IsUpper(r) {
			return unicode.ToLower(r)
		}
		return unicode.ToUpper(r)
	}, s)
}

func escape(s string) string {
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(s)
}

func indent(e *eval, v Value, a *args) (Value, error) {
	s, err := e.text(v)
	if err != nil {
		return nil, err
	}
	var pad string
	switch w := a.at(0, "width", int64(4)).(type) {
	case int64:
		p, _, err := e.repeat(" ", w)
		if err != nil {
			return nil, err
		}
		pad = p.(string)
	case string:
		pad = w
	default:
		return nil, errors.New("indent takes a width or a string")
	}
	firstToo, blank := truth(a.at(1, "first", false)), truth(a.at(2, "blank", false))
	lines := strings.Split(s+"\n", "\n")
	lines = lines[:len(lines)-1]
	if len(lines) > e.bytes/(len(pad)+1) {
		return nil, errBudget
	}
	if err := e.make(len(s) + len(lines)*len(pad)); err != nil {
		return nil, err
	}
	for i := range lines {
		if i == 0 && firstToo || i > 0 && (blank || lines[i] != "") {
			lines[i] = pad + lines[i]
		}
	}
	return strings.Join(lines, "\n"), nil
}

func truncate(e *eval, v Value, a *args) (Value, error) {
	s, err := e.text(v)
	length, ok1 := a.at(0, "length", int64(255)).(int64)
	end, ok2 := a.at(2, "end", "...").(string)
	leeway, ok3 := a.at(3, "leeway", int64(5)).(int64)
	if leeway == 0 && a.at(3, "leeway", nil) == nil {
		leeway = 5
	}
	if err == nil && (!ok1 || !ok2 || !ok3 || length < int64(count(end))) {
		err = errors.New("truncate takes a length, a bool, an end and a leeway")
	}
	if err != nil {
		return nil, err
	}
	r := []rune(s)
	if int64(len(r)) <= length+leeway {
		return s, nil
	}
	cut := string(r[:length-int64(count(end))])
	if !truth(a.at(1, "killwords", false)) {
		if i := strings.LastIndexByte(cut, ' '); i >= 0 {
			cut = cut[:i]
		}
	}
	return cut + end, nil
}

// formatMethod is "{} {0} {name}".format(...), without specifications.
func formatMethod(e *eval, s string, a *args) (Value, error) {
	var b strings.Builder
	next := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case (c == '{' || c == '}') && i+1 < len(s) && s[i+1] == c:
			i++
			b.WriteByte(c)
		case c == '}':
			return nil, errors.New("single '}' encountered in format string")
		case c != '{':
			b.WriteByte(c)
		default:
			n := strings.IndexByte(s[i:], '}')
			if n < 0 {
				return nil, errors.New("expected '}' before end of string")
			}
			field := s[i+1 : i+n]
			i += n
			v, err := formatField(a, field, &next)
			if err != nil {
				return nil, err
			}
			t, err := e.text(v)
			if err == nil {
				err = e.make(len(t))
			}
			if err != nil {
				return nil, err
			}
			b.WriteString(t)
		}
	}
	return b.String(), nil
}

func formatField(a *args, field string, next *int) (Value, error) {
	if field == "" {
		field = strconv.Itoa(*next)
		*next++
	}
	if i, err := strconv.Atoi(field); err == nil {
		if i < 0 || i >= len(a.pos) {
			return nil, fmt.Errorf("replacement index %d out of range for positional args", i)
		}
		return a.pos[i], nil
	}
	v, ok := a.values[field]
	if !ok {
		return nil, &Error{What: fmt.Sprintf("format() with {%s}", field), Unsupported: true}
	}
	return v, nil
}

// percent is "%s" % v.
func (e *eval) percent(s string, v Value) (Value, error) {
	values := []Value{v}
	if l, ok := v.(*List); ok && l.tuple {
		values = l.Items
	}
	mapping, isDict := v.(*Dict)
	used := 0
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		start := i
		i++
		var arg Value
		named := false
		if strings.HasPrefix(s[i:], "(") && isDict {
			n := strings.IndexByte(s[i:], ')')
			if n < 0 {
				return nil, errors.New("incomplete format key")
			}
			if arg, named = mapping.Get(s[i+1 : i+n]); !named {
				return nil, fmt.Errorf("no key '%s'", s[i+1:i+n])
			}
			i += n + 1
			start = i - 1
		}
		n := strings.IndexFunc(s[i:], func(r rune) bool { return !strings.ContainsRune("-+ #0123456789.", r) })
		if n < 0 {
			return nil, errors.New("incomplete format")
		}
		flags := s[start+1 : i+n]
		i += n
		if s[i] == '%' {
			b.WriteByte('%')
			continue
		}
		if !named {
			if used >= len(values) {
				return nil, errors.New("not enough arguments for format string")
			}
			arg = values[used]
			used++
		}
		t, err := e.conversion(flags, s[i], arg)
		if err != nil {
			return nil, err
		}
		b.WriteString(t)
	}
	if used < len(values) && !isDict {
		return nil, errors.New("not all arguments converted during string formatting")
	}
	return b.String(), nil
}

// conversion is one %-directive; Go and C agree on those that are passed on.
func (e *eval) conversion(flags string, verb byte, v Value) (string, error) {
	for _, n := range strings.FieldsFunc(flags, func(r rune) bool { return r < '0' || r > '9' }) {
		if len(n) > 3 { // a width that is no layout
			return "", errBudget
		}
	}
	var arg any
	switch verb {
	case 's', 'r':
		if verb == 's' {
			t, err := e.text(v)
			if err != nil {
				return "", err
			}
			arg = t
		} else {
			var b strings.Builder
			if err := e.repr(&b, v, 0); err != nil {
				return "", err
			}
			arg = b.String()
		}
		flags = strings.TrimLeft(flags, "+ #0")
		verb = 's'
	case 'd', 'i', 'u', 'x', 'X', 'o':
		n, f, isInt, ok := number(v)
		if !ok || !isInt && verb != 'd' && verb != 'i' && verb != 'u' {
			return "", fmt.Errorf("%%%c format: a number is required, not %s", verb, typeName(v))
		}
		if !isInt {
			n = int64(f)
		}
		arg = n
		if verb == 'i' || verb == 'u' {
			verb = 'd'
		}
	case 'f', 'F', 'e', 'E':
		_, f, _, ok := number(v)
		if !ok {
			return "", fmt.Errorf("must be real number, not %s", typeName(v))
		}
		arg = f
	default:
		return "", &Error{What: fmt.Sprintf("format directive %%%c", verb), Unsupported: true}
	}
	t := fmt.Sprintf("%"+flags+string(verb), arg)
	return t, e.make(len(t))
}
