package chat

import "strings"

// thoughts are how models mark what they think before they answer.
var thoughts = []struct{ open, close string }{
	{"<think>", "</think>"},
	{"[THINK]", "[/THINK]"},
	{"<|channel|>analysis<|message|>", "<|end|><|start|>assistant<|channel|>final<|message|>"},
}

// Part is a piece of what a model says.
type Part struct {
	Text    string
	Thought bool
}

// Splitter tells a model's thoughts from its answer while it speaks. The marks
// themselves are left out, and the white space around them.
type Splitter struct {
	held    string // what may be the beginning of a mark
	close   string // the mark that ends the thought; "" outside one
	started bool   // a part has come since the last mark
}

// NewSplitter is for what follows a prompt, which may have opened a thought.
func NewSplitter(prompt string) *Splitter {
	s := &Splitter{}
	prompt = strings.TrimRight(prompt, " \n")
	for _, t := range thoughts {
		if strings.HasSuffix(prompt, t.open) {
			s.close = t.close
		}
	}
	return s
}

// Next takes text and returns what is certain by now.
func (s *Splitter) Next(text string) []Part {
	s.held += text
	var out []Part
	for {
		at, mark, next := s.find()
		if at < 0 {
			break
		}
		out = s.add(out, strings.TrimRight(s.held[:at], " \n"))
		s.held, s.close, s.started = s.held[at+len(mark):], next, false
	}
	// White space is held too: it goes if a mark follows.
	keep := len(strings.TrimRight(s.held[:len(s.held)-s.partial()], " \n"))
	out = s.add(out, s.held[:keep])
	s.held = s.held[keep:]
	return out
}

// Flush ends the text and returns what was held.
func (s *Splitter) Flush() []Part {
	out := s.add(nil, s.held)
	s.held = ""
	return out
}

func (s *Splitter) add(out []Part, text string) []Part {
	if !s.started {
		text = strings.TrimLeft(text, "\n")
	}
	if text == "" {
		return out
	}
	s.started = true
	return append(out, Part{text, s.close != ""})
}

// find is the first mark in what is held: the end of the thought, or the
// beginning of one.
func (s *Splitter) find() (at int, mark, next string) {
	if s.close != "" {
		return strings.Index(s.held, s.close), s.close, ""
	}
	at = -1
	for _, t := range thoughts {
		if i := strings.Index(s.held, t.open); i >= 0 && (at < 0 || i < at) {
			at, mark, next = i, t.open, t.close
		}
	}
	return at, mark, next
}

// partial is how many bytes at the end may begin a mark.
func (s *Splitter) partial() int {
	longest := 0
	for _, t := range thoughts {
		mark := t.open
		if s.close != "" {
			mark = s.close
		}
		for n := min(len(mark)-1, len(s.held)); n > longest; n-- {
			if strings.HasSuffix(s.held, mark[:n]) {
				longest = n
			}
		}
	}
	return longest
}
