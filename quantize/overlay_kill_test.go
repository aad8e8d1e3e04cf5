package quantize

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
)

// killRequest is the overlay of the kill tests: several shards.
func killRequest() OverlayRequest {
	req := kvB("int4-grouped/32")
	req.MaxShard = 4000
	return req
}

// TestOverlayKilledAnywhere kills overlays, their merging and their removal
// with SIGKILL at 50 random points. At each, the base can be loaded: readers of
// the index find it whole, as it was or as it shall be, and readers of the
// first path find every matrix with its own scales. Continued, the directory is
// that of an undisturbed run.
func TestOverlayKilledAnywhere(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("SKIPPED: no SIGKILL on windows")
	}
	if dir := os.Getenv("OVERLAY_TEST_DIR"); dir != "" {
		overlayChild(t, dir, os.Getenv("OVERLAY_TEST_JOB"))
		return
	}
	c := oracleContainer(t, 0)
	_, old := readers(t, c.dir)
	ref := *c
	ref.dir = copyDir(t, c.dir)
	write(t, ref.mustOverlay(t, c.source, killRequest()))
	_, now := readers(t, ref.dir)
	merged := copyDir(t, ref.dir)
	merge(t, merged, merged, "kvb")
	jobs := []struct {
		name        string
		start, done map[string]string
	}{
		{"overlay", files(t, c.dir), files(t, ref.dir)},
		{"remove", files(t, ref.dir), files(t, c.dir)},
		{"merge", files(t, ref.dir), files(t, merged)},
	}
	rng := rand.New(rand.NewPCG(3, 4))
	kills, stages := 0, map[string]int{}
	for round := 0; kills < 50; round++ {
		job := jobs[round%len(jobs)]
		dir := outDir(t)
		restoreDir(t, dir, job.start)
		for try := 0; ; try++ { // later and later, so that each round ends
			delay := time.Duration(rng.IntN(1<<min(10+try, 20))) * time.Microsecond
			cmd := child(t, t.Name(), "OVERLAY_TEST_DIR="+dir, "OVERLAY_TEST_JOB="+job.name, "OVERLAY_TEST_DELAY="+delay.String())
			text, err := cmd.CombinedOutput()
			if err == nil {
				break // it was quicker than its killer
			}
			if state := cmd.ProcessState.String(); state != "signal: killed" {
				t.Fatalf("child: %s\n%s", state, text)
			}
			kills++
			stages[job.name+" "+checkKilled(t, dir, old, now)]++
		}
		sameFiles(t, files(t, dir), job.done)
		if left := hidden(t, dir); len(left) > 0 {
			t.Errorf("%s: left %v", job.name, left)
		}
		if t.Failed() {
			return
		}
	}
	t.Logf("%d kills: %v", kills, stages)
}

func restoreDir(t *testing.T, dir string, all map[string]string) {
	t.Helper()
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, data := range all {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(data), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// overlayChild does a job and is killed a while after it has begun; a job that
// is done already is no error.
func overlayChild(t *testing.T, dir, job string) {
	delay, err := time.ParseDuration(os.Getenv("OVERLAY_TEST_DELAY"))
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	source := open(t, fixtures.Path(t, "glm_moe_dsa"))
	c := &container{source: source, wants: wantsOf(source, 0), dir: dir}
	list, err := Overlays(dir)
	if err != nil {
		t.Fatal(err)
	}
	kill := func() {
		go func() {
			time.Sleep(delay)
			_ = self.Kill()
		}()
	}
	switch {
	case job == "overlay":
		o := c.mustOverlay(t, source, killRequest())
		kill()
		write(t, o)
	case len(list) == 0:
	case job == "remove":
		kill()
		_, err = RemoveOverlay(dir, "kvb")
	default:
		kill()
		merge(t, dir, dir, "kvb")
	}
	if err != nil {
		t.Fatal(err)
	}
}

// checkKilled holds a directory against the base as it was and as it shall be.
func checkKilled(t *testing.T, dir string, old, now reader) string {
	t.Helper()
	snap, err := format.Open(dir)
	if err != nil {
		t.Fatalf("the base cannot be loaded: %v", err)
	}
	defer func() { _ = snap.Close() }()
	got := reader{}
	for _, name := range snap.Names() {
		x := snap.Tensor(name)
		data, err := x.Shard.Bytes(x)
		if err != nil {
			t.Fatal(err)
		}
		got[name] = string(x.DType) + string(data)
	}
	_, byPath := readers(t, dir)
	changed := 0
	for name, v := range byPath {
		if strings.HasSuffix(name, format.ScaleSuffix) {
			continue
		}
		q := name + format.ScaleSuffix
		switch {
		case v == old[name] && byPath[q] == old[q]:
		case v == now[name] && byPath[q] == now[q]:
			changed++
		default:
			t.Errorf("by path, %s and its scales are of two minds", name)
		}
	}
	mixture := ""
	if changed > 0 && changed < 4 {
		mixture = ", by path in part"
	}
	switch {
	case maps.Equal(got, old):
		return "old" + mixture
	case maps.Equal(got, now):
		return "new" + mixture
	}
	t.Errorf("by index the base is neither what it was nor what it shall be")
	return "?"
}

// TestOverlayKilledWhilePublishing builds the states between the last byte of
// the shards and the index, which are too short to be hit by chance.
func TestOverlayKilledWhilePublishing(t *testing.T) {
	c := oracleContainer(t, 0)
	if err := os.Remove(filepath.Join(c.dir, indexName)); err != nil {
		t.Fatal(err)
	}
	before := files(t, c.dir)
	_, old := readers(t, c.dir)
	done := copyDir(t, c.dir)
	d := &container{source: c.source, wants: c.wants, dir: done}
	write(t, d.mustOverlay(t, c.source, killRequest()))
	_, now := readers(t, done)
	after := files(t, done)
	described := &weightIndex{dir: t.TempDir(), members: map[string]json.RawMessage{}, shards: map[string]string{}}
	described.describe(open(t, c.dir), nil)
	if err := described.write(); err != nil {
		t.Fatal(err)
	}
	oldIndex := files(t, described.dir)[indexName]
	record := "kvb.overlay.json"
	var shards []string
	for name := range after {
		if strings.HasPrefix(name, "kvb-") {
			shards = append(shards, name)
		}
	}
	if len(shards) < 3 {
		t.Fatalf("shards %v", shards)
	}
	for _, state := range []struct {
		name  string
		index string
		moved int
		place bool // the record is in its place
		dirty bool // the hidden directory is there
		want  reader
	}{
		{"all is staged", "", 0, false, true, old},
		{"the old index is written", oldIndex, 0, false, true, old},
		{"one shard has its name", oldIndex, 1, false, true, old},
		{"all have their names", oldIndex, len(shards), false, true, old},
		{"the record is written", oldIndex, len(shards), true, true, old},
		{"the index is written", after[indexName], len(shards), true, true, now},
		{"clearing away", after[indexName], len(shards), true, false, now},
	} {
		build := func() string {
			dir := outDir(t)
			restoreDir(t, dir, before)
			staging := stagingDir(dir, "kvb")
			put := func(to, name, data string) {
				if err := os.WriteFile(filepath.Join(to, name), []byte(data), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.Mkdir(staging, 0o755); err != nil {
				t.Fatal(err)
			}
			if state.dirty {
				put(staging, record, after[record])
			}
			if state.index != "" {
				put(dir, indexName, state.index)
			}
			if state.place {
				put(dir, record, after[record])
			}
			for i, name := range shards {
				to := staging
				if i < state.moved {
					to = dir
				}
				put(to, name, after[name])
			}
			return dir
		}
		dir := build()
		snap := open(t, dir)
		got := reader{}
		for _, name := range snap.Names() {
			x := snap.Tensor(name)
			data, _ := x.Shard.Bytes(x)
			got[name] = string(x.DType) + string(data)
		}
		sameReader(t, state.name, got, state.want)
		if len(snap.Warnings) > 0 {
			t.Errorf("%s: warnings %v", state.name, snap.Warnings)
		}
		if list, err := Overlays(dir); err != nil || len(list) != 1 || list[0].Tensors != 4 {
			t.Errorf("%s: %+v, %v", state.name, list, err)
		}
		d.dir = dir
		if r := write(t, d.mustOverlay(t, c.source, killRequest())); r.Written != 0 {
			t.Errorf("%s: %+v", state.name, r)
		}
		sameFiles(t, files(t, dir), after)
		dir = build()
		if _, err := RemoveOverlay(dir, "kvb"); err != nil {
			t.Fatal(err)
		}
		sameFiles(t, files(t, dir), before)
		if t.Failed() {
			t.Fatal(state.name)
		}
	}
}
