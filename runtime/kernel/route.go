package kernel

import (
	"math"
	"slices"
)

// orderKey maps a float32 to an integer of the same order; −0 equals +0, and a
// NaN is below everything.
func orderKey(x float32) uint32 {
	b := math.Float32bits(x)
	switch {
	case x != x:
		return 0
	case x == 0:
		b = 0
	}
	return b ^ (uint32(int32(b)>>31) | 1<<31)
}

// TopK writes the indices of the k largest scores to dst[:k] in increasing
// order and returns them; all of them if k ≥ len(scores). Of equal scores the
// lowest indices are taken.
func TopK(dst []int32, scores []float32, k int) []int32 {
	k = max(0, min(k, len(scores)))
	dst = dst[:0]
	if k == len(scores) {
		for i := range scores {
			dst = append(dst, int32(i))
		}
		return dst
	}
	if k == 0 {
		return dst
	}
	if kth, ok := kthSIMD(scores, k); ok {
		return takeLargest(dst, scores, kth, k)
	}
	// Find the k-th largest key from its highest digit down. need counts how
	// many keys with the prefix found so far are taken.
	var prefix, mask uint32
	need := k
	for _, d := range [...]struct{ shift, bits uint32 }{{21, 11}, {10, 11}, {0, 10}} {
		var count [2048]int32
		for _, s := range scores {
			if key := orderKey(s); key&mask == prefix {
				count[key>>d.shift&(1<<d.bits-1)]++
			}
		}
		digit := uint32(1)<<d.bits - 1
		for int(count[digit]) < need {
			need -= int(count[digit])
			digit--
		}
		prefix |= digit << d.shift
		mask |= (1<<d.bits - 1) << d.shift
	}
	for i, s := range scores {
		switch key := orderKey(s); {
		case key > prefix:
			dst = append(dst, int32(i))
		case key == prefix && need > 0:
			need--
			dst = append(dst, int32(i))
		}
	}
	return dst
}

// takeLargest appends the indices of the k largest scores, of which kth is the
// least.
func takeLargest(dst []int32, scores []float32, kth float32, k int) []int32 {
	need := k
	for _, s := range scores {
		if s > kth {
			need--
		}
	}
	for i, s := range scores {
		switch {
		case s > kth:
			dst = append(dst, int32(i))
		case s == kth && need > 0:
			need--
			dst = append(dst, int32(i))
		}
	}
	return dst
}

// Route chooses the experts of one token. With sig = Sigmoid(logits), or their
// Softmax, and choice = sig + bias (bias may be nil), only the topkGroup of nGroup equal
// groups whose two best choices have the largest sum compete, if nGroup > 1;
// of them the topK largest choices win, ties to the lowest index.
//
// ids[topK] are the winners in increasing order and w[topK] their sig, if
// normalize is set divided by (their sum in that order + 1e-20), times scale.
func Route(logits, bias []float32, softmax bool, nGroup, topkGroup, topK int, normalize bool, scale float32, ids []int32, w []float32, tmp *Scratch) {
	n := len(logits)
	tmp.row = grow(tmp.row, 2*n)
	sig, choice := tmp.row[:n], tmp.row[n:]
	if copy(sig, logits); softmax {
		Softmax(sig)
	} else {
		for i, x := range logits {
			sig[i] = Sigmoid(x)
		}
	}
	for i, s := range sig {
		choice[i] = s
		if bias != nil {
			choice[i] += bias[i]
		}
	}
	if nGroup > 1 {
		limitGroups(choice, nGroup, topkGroup, tmp)
	}
	ids = TopK(ids, choice, topK)
	var total float32
	for i, e := range ids {
		w[i] = sig[e]
		total += sig[e]
	}
	for i := range ids {
		if normalize {
			w[i] /= total + 1e-20
		}
		w[i] *= scale
	}
}

// limitGroups sets the choices outside the best groups to −Inf.
func limitGroups(choice []float32, groups, keep int, tmp *Scratch) {
	size := len(choice) / groups
	tmp.chunk = grow(tmp.chunk, groups)
	for g := range groups {
		first, second := float32(math.Inf(-1)), float32(math.Inf(-1))
		for _, c := range choice[g*size:][:size] {
			switch {
			case c > first:
				first, second = c, first
			case c > second:
				second = c
			}
		}
		tmp.chunk[g] = first
		if size > 1 {
			tmp.chunk[g] += second
		}
	}
	tmp.ids = TopK(slices.Grow(tmp.ids[:0], groups), tmp.chunk, keep)
	for g := range groups {
		if _, kept := slices.BinarySearch(tmp.ids, int32(g)); kept {
			continue
		}
		for i := range size {
			choice[g*size+i] = float32(math.Inf(-1))
		}
	}
}
