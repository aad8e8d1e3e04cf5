package jinja

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

func intFilter(_ *eval, v Value, a *args) (Value, error) {
	otherwise := a.at(0, "default", int64(0))
	base, ok := a.at(1, "base", int64(10)).(int64)
	if !ok || base != 0 && base < 2 || base > 36 {
		return otherwise, nil
	}
	i, f, isInt, isNum := number(v)
	if s, ok := v.(string); ok {
		s = strings.ReplaceAll(strings.TrimFunc(s, space), "_", "")
		n, err := strconv.ParseInt(s, int(base), 64)
		if err == nil {
			return n, nil
		}
		if f, err = strconv.ParseFloat(s, 64); err != nil {
			return otherwise, nil
		}
	} else if isInt {
		return i, nil
	} else if !isNum {
		return otherwise, nil
	}
	if math.Abs(f) < 1<<63 {
		return int64(f), nil
	}
	return otherwise, nil
}

func floatFilter(_ *eval, v Value, a *args) (Value, error) {
	if _, f, _, ok := number(v); ok {
		return f, nil
	}
	if s, ok := v.(string); ok {
		if f, err := strconv.ParseFloat(strings.TrimFunc(s, space), 64); err == nil {
			return f, nil
		}
	}
	return a.at(0, "default", 0.0), nil
}

func abs(_ *eval, v Value, _ *args) (Value, error) {
	i, f, isInt, ok := number(v)
	switch {
	case !ok:
		return nil, fmt.Errorf("bad operand type for abs(): '%s'", typeName(v))
	case isInt && i < 0:
		return integers("-", 0, i)
	case isInt:
		return i, nil
	}
	return math.Abs(f), nil
}

func round(_ *eval, v Value, a *args) (Value, error) {
	n, f, isInt, ok := number(v)
	digits, isDigits := a.at(0, "precision", int64(0)).(int64)
	if !ok || !isDigits || digits < -300 || digits > 300 {
		return nil, errors.New("round takes a number and a number of digits")
	}
	scale := math.Pow(10, float64(digits))
	switch a.at(1, "method", "common") {
	case "ceil":
		return math.Ceil(f*scale) / scale, nil
	case "floor":
		return math.Floor(f*scale) / scale, nil
	}
	switch {
	case isInt && digits >= 0:
		return n, nil
	case digits < 0:
		return math.RoundToEven(f*scale) / scale, nil
	}
	out, err := strconv.ParseFloat(strconv.FormatFloat(f, 'f', int(digits), 64), 64) // rounds half to even, as Python does
	return out, err
}
