package quantize

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
)

// child is a test in a process of its own, which may be killed: what it leaves
// of its temporary directories goes with those of the test that started it.
func child(t testing.TB, test string, env ...string) *exec.Cmd {
	t.Helper()
	temp := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(append(os.Environ(), "TMPDIR="+temp, "GOTMPDIR="+temp), env...)
	return cmd
}

func TestKilledChildLeavesNothing(t *testing.T) {
	if goruntime.GOOS == "windows" {
		t.Skip("SKIPPED: no SIGKILL on windows")
	}
	if os.Getenv("CHILD_TEST") != "" {
		fmt.Printf("%s\n", t.TempDir())
		self, err := os.FindProcess(os.Getpid())
		if err == nil {
			err = self.Kill()
		}
		t.Fatal(err)
	}
	cmd := child(t, "TestKilledChildLeavesNothing", "CHILD_TEST=1")
	text, _ := cmd.Output()
	dir, mine := strings.TrimSpace(string(text)), filepath.Dir(t.TempDir())
	if _, err := os.Stat(dir); err != nil || !strings.HasPrefix(dir, mine+string(filepath.Separator)) {
		t.Errorf("the killed child left %q, not below %s: %v", dir, mine, err)
	}
}
