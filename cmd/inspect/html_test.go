package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"hawkmoth/cmd/internal/report"
	"hawkmoth/format"
	"hawkmoth/internal/fixtures"
	"hawkmoth/quantize"
)

// browser opens a page without a window and returns what became of it, and the
// hosts that were asked for anything. Every request meets the test's proxy.
func browser(t *testing.T, page string) (dom string, asked []string) {
	t.Helper()
	var program string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			program = path
			break
		}
	}
	if program == "" {
		t.Skip("SKIPPED: no Chromium")
	}
	var mu sync.Mutex
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, r.Host)
		http.Error(w, "nothing here", http.StatusNotFound)
	}))
	defer proxy.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--no-first-run", "--disable-default-apps", "--proxy-server="+strings.TrimPrefix(proxy.URL, "http://"), "--proxy-bypass-list=<-loopback>",
		"--user-data-dir="+t.TempDir(), "--virtual-time-budget=3000", "--dump-dom", "file://"+page)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	mu.Lock()
	defer mu.Unlock()
	var list []string
	for _, host := range asked {
		// What the browser asks its maker, whatever it shows.
		if !strings.Contains(host, "google") && !strings.Contains(host, "gstatic.com") {
			list = append(list, host)
		}
	}
	return string(out), list
}

// probe presses every button of the page and writes down what it saw.
const probe = `<script>
(function () {
  var seen = { cells: 0, rows: 0, empty: 0, painted: {} };
  document.querySelectorAll("#map button").forEach(function (b) {
    b.click();
    seen.cells++;
    var n = document.querySelectorAll("#detail tr").length - 1;
    seen.rows += n;
    if (n < 1) seen.empty++;
  });
  document.querySelectorAll("input[name=mode]").forEach(function (i) {
    i.click();
    seen.painted[i.value] = Array.prototype.filter.call(document.querySelectorAll("#map button"), function (b) { return b.textContent !== "" && getComputedStyle(b).backgroundColor !== "rgba(0, 0, 0, 0)" || getComputedStyle(b).backgroundImage !== "none"; }).length;
  });
  document.querySelector("input[name=mode][value=format]").click();
  var e = document.createElement("pre");
  e.id = "probe";
  e.textContent = JSON.stringify({ seen: seen, resources: performance.getEntriesByType("resource").length, wide: document.documentElement.scrollWidth > innerWidth });
  document.body.appendChild(e);
})();
</script>`

func TestPageInABrowser(t *testing.T) {
	checkpoint := synthesise(t, small(), in(format.BF16, 0)).save()
	m := synthesise(t, small(), func(w quantize.Want) (format.Spec, bool) {
		s, ok := in(format.Int4Grouped, 64)(w)
		if w.Role == quantize.KVB {
			s = format.Spec{Format: format.Int8Row}
		}
		if w.Expert == 1 { // a cell of two formats
			s = format.Spec{Format: format.Int3G64}
		}
		return s, ok
	})
	m.set("<script>alert(1)</script>", format.DTypeF32, []int{1}, make([]byte, 4))
	dir := m.save()
	page := filepath.Join(t.TempDir(), "report.html")
	code, _, stderr := runInspect(dir, "--html", page, "--against", checkpoint, "--engine", "colibri-1.12", "--engine", "colibri-1.6", "-c", "64", "--memory", "1G", "--verify")
	if code != 0 || !strings.Contains(stderr, "wrote "+page) {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, word := range []string{"http:", "https:", "//cdn", "@import", "url(", "<script>alert"} {
		if strings.Contains(string(text), word) {
			t.Errorf("the page holds %q", word)
		}
	}
	holds(t, string(text), "convert overlay "+dir+" --tensors kv_b_proj --format int4-grouped --group-size 64", "Largest errors", "default-src 'none'")
	probed := filepath.Join(t.TempDir(), "probed.html")
	if err := os.WriteFile(probed, append(text, probe...), 0o644); err != nil {
		t.Fatal(err)
	}
	dom, asked := browser(t, probed)
	if len(asked) > 0 {
		t.Errorf("the page asks for %v", asked)
	}
	r := inspected(t, 0, dir, "--layers")
	complete(t, dom, r)
	cells := 0
	for _, l := range r.Layers {
		for _, c := range l.Roles {
			cells += min(1, len(c.Formats))
		}
	}
	rows := 0 // every tensor has a line, since each has an error
	for _, l := range r.Layers {
		for _, c := range l.Roles {
			for _, f := range c.Formats {
				rows += f.Tensors
			}
		}
	}
	holds(t, dom, fmt.Sprintf(`{"seen":{"cells":%d,"rows":%d,"empty":0,"painted":{"format":%d,"bits":%d,"bytes":%d,"error":%d}},"resources":0,"wide":false}`, cells, rows, cells, cells, cells, cells))
}

// complete checks that the map has a cell for every role of every layer.
func complete(t *testing.T, dom string, r *report.Report) {
	t.Helper()
	row := regexp.MustCompile(`<tr data-layer="(-?\d+)">(.*?)</tr>`)
	cell := regexp.MustCompile(`<td(?: class="(\w+)")? data-role="(\w+)"[^>]*>(?:<button[^>]*>)?([^<]*)`)
	found := map[string]string{}
	for _, m := range row.FindAllStringSubmatch(dom, -1) {
		for _, c := range cell.FindAllStringSubmatch(m[2], -1) {
			found[m[1]+" "+c[2]] = c[1] + ":" + c[3]
		}
	}
	for _, l := range r.Layers {
		for _, c := range l.Roles {
			key := fmt.Sprint(l.Layer, " ", c.Role)
			got, ok := found[key]
			switch {
			case l.MTP && (c.Role == "embed" || c.Role == "head") && !ok: // shared with the model
			case len(c.Formats) > 0 && (!strings.HasPrefix(got, ":") || len(got) < 4):
				t.Errorf("%s: %q, want formats", key, got)
			case len(c.Formats) == 0 && got != "absent:absent" && got != "missing:missing":
				t.Errorf("%s: %q", key, got)
			}
		}
	}
	if len(found) < len(r.Layers)*3 {
		t.Errorf("%d cells", len(found))
	}
}

// TestBrowserSeesRequests shows that TestPageInABrowser can fail.
func TestBrowserSeesRequests(t *testing.T) {
	page := filepath.Join(t.TempDir(), "bad.html")
	if err := os.WriteFile(page, []byte(`<!doctype html><img src="http://elsewhere.test/x.png">`), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, asked := browser(t, page); len(asked) != 1 || asked[0] != "elsewhere.test" {
		t.Errorf("asked for %v", asked)
	}
}

// TestPageOfWhatDoesNotLoad: a page is written for damaged and unknown
// snapshots, too.
func TestPageOfWhatDoesNotLoad(t *testing.T) {
	m := synthesise(t, small(), in(format.Int8Row, 0))
	m.drop(func(name string) bool { return strings.HasPrefix(name, "model.layers.1.self_attn") || name == qA })
	unknown := t.TempDir()
	m.write(filepath.Join(unknown, "model.safetensors"), true, all)
	broken := t.TempDir()
	if err := os.WriteFile(filepath.Join(broken, "model.safetensors"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		dir   string
		code  int
		words []string
	}{
		{m.save(), 4, []string{"not loadable", `class="missing"`, "1 missing", "model.layers.{0-1}.self_attn.q_a_proj.weight"}},
		{unknown, 0, []string{"tensors only", "Not known"}},
		{broken, 4, []string{"not loadable", "not a safetensors file"}},
		{fixtures.Path(t, "glm_moe_dsa"), 0, []string{"loadable", "plain floats are quantised at load"}},
	} {
		page := filepath.Join(t.TempDir(), "page.html")
		if code, _, stderr := runInspect(tt.dir, "--html", page); code != tt.code {
			t.Errorf("%s: exit code %d: %s", tt.dir, code, stderr)
		}
		text, err := os.ReadFile(page)
		if err != nil {
			t.Errorf("%s: %v", tt.dir, err)
			continue
		}
		holds(t, string(text), tt.words...)
	}
}

// TestHTMLThatCannotBeWritten is found before the work.
func TestHTMLThatCannotBeWritten(t *testing.T) {
	dir := synthesise(t, small(), in(format.Int8Row, 0)).save()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	for _, page := range []string{filepath.Join(dir, "nowhere", "page.html"), t.TempDir(), socket} {
		code, stdout, stderr := runInspect(dir, "--html", page, "--verify")
		if code != 1 || stdout != "" || !strings.HasPrefix(stderr, "inspect: "+page+": cannot create: ") {
			t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
		}
	}
}
