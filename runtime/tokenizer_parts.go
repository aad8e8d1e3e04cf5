package runtime

import (
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"golang.org/x/text/unicode/norm"

	"hawkmoth/format"
)

// patternJSON is a pattern that is either literal or an expression.
type patternJSON struct {
	String *string `json:"String"`
	Regex  *string `json:"Regex"`
}

type replaceJSON struct {
	Type    string      `json:"type"`
	Pattern patternJSON `json:"pattern"`
	Content string      `json:"content"`
}

func (l *tokenizerLoader) pattern(where string, j patternJSON) *textPattern {
	var src string
	switch {
	case j.Regex != nil && j.String == nil:
		src = *j.Regex
	case j.String != nil && j.Regex == nil:
		if *j.String == "" {
			l.fail(format.ErrUnsupported, "%s with an empty pattern", where)
			return nil
		}
		src = quotePattern(*j.String)
	default:
		l.fail(format.ErrCorrupt, "%s without a pattern", where)
		return nil
	}
	p, err := compilePattern(src)
	if err != nil {
		l.problems = append(l.problems, &format.Error{Kind: format.ErrUnsupported, Path: "tokenizer.json", What: where, Err: err})
	}
	return p
}

// quotePattern is a pattern that matches s alone.
func quotePattern(s string) string {
	var b strings.Builder
	for _, r := range s {
		if strings.ContainsRune(`\.+*?()|[]{}^$`, r) {
			b.WriteByte('\\')
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (l *tokenizerLoader) normalizer(raw jsontext.Value) {
	growth := 1
	for _, raw := range l.flat("normalizer", "normalizers", raw) {
		var step normalizeStep
		switch kind := l.kind("normalizer", raw); kind {
		case "NFC":
			step = unicodeStep(norm.NFC)
		case "NFD":
			step = unicodeStep(norm.NFD)
		case "NFKC":
			step = unicodeStep(norm.NFKC)
		case "NFKD":
			step = unicodeStep(norm.NFKD)
		case "Prepend":
			var c struct {
				Type    string `json:"type"`
				Prepend string `json:"prepend"`
			}
			if l.part("normalizer Prepend", raw, &c); len(c.Prepend) > prependMaxBytes {
				l.fail(format.ErrUnsupported, "normalizer Prepend of %d bytes", len(c.Prepend))
			}
			step = prependStep(c.Prepend)
		case "Replace":
			var c replaceJSON
			if !l.part("normalizer Replace", raw, &c) {
				continue
			}
			p := l.pattern("normalizer Replace", c.Pattern)
			if p == nil {
				continue
			}
			if growth *= max(len(c.Content), 1); p.nullable || growth > normalizeGrowth {
				l.fail(format.ErrUnsupported, "normalizer Replace by something much longer")
			}
			step = replaceStep(p, c.Content)
		default:
			l.fail(format.ErrUnsupported, "normalizer %s", kind)
		}
		l.t.normalize = append(l.t.normalize, step)
	}
}

func (l *tokenizerLoader) preTokenizer(raw jsontext.Value) {
	t := l.t
	for _, raw := range l.flat("pre_tokenizer", "pretokenizers", raw) {
		kind := l.kind("pre_tokenizer", raw)
		if t.model.byteLevel {
			l.fail(format.ErrUnsupported, "pre_tokenizer %s behind ByteLevel", kind)
		}
		switch kind {
		case "Split":
			var c struct {
				Type     string      `json:"type"`
				Pattern  patternJSON `json:"pattern"`
				Behavior string      `json:"behavior"`
				Invert   bool        `json:"invert"`
			}
			if !l.part("pre_tokenizer Split", raw, &c) {
				continue
			}
			behavior, ok := splitBehaviors[c.Behavior]
			if !ok {
				l.fail(format.ErrUnsupported, "pre_tokenizer Split with behavior %q", c.Behavior)
			}
			t.steps = append(t.steps, splitStep{pattern: l.pattern("pre_tokenizer Split", c.Pattern), behavior: behavior, invert: c.Invert})
		case "Digits":
			var c struct {
				Type       string `json:"type"`
				Individual bool   `json:"individual_digits"`
			}
			l.part("pre_tokenizer Digits", raw, &c)
			step := splitStep{behavior: splitContiguous}
			if c.Individual {
				step.behavior = splitIsolated
			}
			step.pattern, _ = compilePattern(`\p{N}`)
			t.steps = append(t.steps, step)
		case "ByteLevel":
			c := byteLevelJSON{UseRegex: true}
			l.part("pre_tokenizer ByteLevel", raw, &c)
			step := splitStep{prefixSpace: c.AddPrefixSpace}
			if c.UseRegex {
				step.pattern, _ = compilePattern(gpt2Split)
			}
			t.model.byteLevel = true
			if step.prefixSpace || step.pattern != nil {
				t.steps = append(t.steps, step)
			}
		default:
			l.fail(format.ErrUnsupported, "pre_tokenizer %s", kind)
		}
	}
}

type byteLevelJSON struct {
	Type           string `json:"type"`
	AddPrefixSpace bool   `json:"add_prefix_space"`
	TrimOffsets    bool   `json:"trim_offsets"` // offsets are not given here
	UseRegex       bool   `json:"use_regex"`
}

func (l *tokenizerLoader) postProcessor(raw jsontext.Value) {
	for _, raw := range l.flat("post_processor", "processors", raw) {
		switch kind := l.kind("post_processor", raw); kind {
		case "ByteLevel": // moves offsets only
		case "TemplateProcessing":
			l.template(raw)
		default:
			l.fail(format.ErrUnsupported, "post_processor %s", kind)
		}
	}
}

func (l *tokenizerLoader) template(raw jsontext.Value) {
	type ref struct {
		ID string `json:"id"`
	}
	var c struct {
		Single []struct {
			SpecialToken *ref `json:"SpecialToken"`
			Sequence     *ref `json:"Sequence"`
		} `json:"single"`
		Tokens map[string]struct {
			IDs []int32 `json:"ids"`
		} `json:"special_tokens"`
	}
	if err := json.Unmarshal(raw, &c); err != nil {
		l.problems = append(l.problems, &format.Error{Kind: format.ErrCorrupt, Path: "tokenizer.json", What: "post_processor TemplateProcessing", Err: err})
		return
	}
	t := l.t
	around := [2][]int32{}
	texts := 0
	for _, p := range c.Single {
		switch {
		case p.Sequence != nil && p.Sequence.ID == "A" && texts == 0:
			texts++
		case p.SpecialToken != nil:
			tok, ok := c.Tokens[p.SpecialToken.ID]
			if !ok {
				l.fail(format.ErrCorrupt, "post_processor TemplateProcessing: no special token %q", p.SpecialToken.ID)
			}
			around[texts] = append(around[texts], tok.IDs...)
		default:
			l.fail(format.ErrUnsupported, "post_processor TemplateProcessing: not one text")
			return
		}
		if len(around[texts]) > templateMax {
			l.fail(format.ErrUnsupported, "post_processor TemplateProcessing of more than %d tokens", templateMax)
			return
		}
	}
	if texts != 1 {
		l.fail(format.ErrUnsupported, "post_processor TemplateProcessing: not one text")
	}
	// A later processor works on the result of the one before.
	t.prefix = append(around[0], t.prefix...)
	t.suffix = append(t.suffix, around[1]...)
}

// loadDecoder takes ByteLevel, or Replace, ByteFallback, Fuse and Strip in that
// order, which is how they stand in files; the first three may be absent.
func (l *tokenizerLoader) loadDecoder(raw jsontext.Value) {
	d := &l.t.decoder
	parts := l.flat("decoder", "decoders", raw)
	if len(parts) == 0 {
		d.separator = " "
	}
	stage, fused, growth := 0, false, 1
	for _, raw := range parts {
		kind := l.kind("decoder", raw)
		order := slices.Index([]string{"Replace", "ByteFallback", "Fuse", "Strip", "ByteLevel"}, kind)
		if order < stage || order == 4 && len(parts) > 1 {
			l.fail(format.ErrUnsupported, "decoder %s", kind)
			continue
		}
		stage = order
		switch kind {
		case "ByteLevel":
			var c byteLevelJSON
			l.part("decoder ByteLevel", raw, &c)
			d.byteLevel = true
		case "Replace":
			var c replaceJSON
			if !l.part("decoder Replace", raw, &c) || l.pattern("decoder Replace", c.Pattern) == nil {
				continue
			}
			if c.Pattern.String == nil {
				l.fail(format.ErrUnsupported, "decoder Replace of an expression")
				continue
			}
			from := *c.Pattern.String
			if growth *= (len(c.Content) + len(from) - 1) / len(from); growth > normalizeGrowth {
				l.fail(format.ErrUnsupported, "decoder Replace by something much longer")
				continue
			}
			growth = max(growth, 1)
			l.replaceTexts(from, c.Content)
		case "ByteFallback":
			d.fallback = true
		case "Fuse":
			fused = true
		case "Strip":
			var c struct {
				Type    string `json:"type"`
				Content string `json:"content"`
				Start   int    `json:"start"`
				Stop    int    `json:"stop"`
			}
			if l.part("decoder Strip", raw, &c); !fused || c.Stop != 0 || c.Start < 0 || utf8.RuneCountInString(c.Content) != 1 || d.stripMax > 0 {
				l.fail(format.ErrUnsupported, "decoder Strip other than at the start of the whole text")
			}
			d.strip, d.stripMax = c.Content, c.Start
		}
	}
}

func (l *tokenizerLoader) replaceTexts(from, to string) {
	for i := range l.t.tokens {
		tok := &l.t.tokens[i]
		tok.text = strings.ReplaceAll(tok.text, from, to)
	}
}
