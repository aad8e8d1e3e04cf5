//go:build !linux

package runtime

import goruntime "runtime"

// physicalCores is the processors that the process may use: nothing portable
// tells the cores behind them.
func physicalCores() int { return goruntime.GOMAXPROCS(0) }
