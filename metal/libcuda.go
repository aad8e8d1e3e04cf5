//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"fmt"
	goruntime "runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// cudaFunctions is all that is used of the driver's interface.
var cudaFunctions = []string{"cuInit", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceTotalMem_v2",
	"cuDevicePrimaryCtxRetain", "cuDevicePrimaryCtxRelease_v2", "cuCtxSetCurrent", "cuGetErrorName",
	"cuModuleLoadDataEx", "cuModuleUnload", "cuModuleGetFunction", "cuFuncGetAttribute", "cuLaunchKernel",
	"cuMemAlloc_v2", "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemHostGetDevicePointer_v2",
	"cuMemcpyHtoD_v2", "cuMemcpyDtoH_v2", "cuMemsetD8_v2",
	"cuStreamCreate", "cuStreamDestroy_v2", "cuStreamSynchronize", "cuStreamWaitEvent",
	"cuGraphCreate", "cuGraphAddKernelNode", "cuGraphInstantiateWithFlags", "cuGraphExecKernelNodeSetParams", "cuGraphLaunch", "cuGraphExecDestroy", "cuGraphDestroy",
	"cuEventCreate", "cuEventDestroy_v2", "cuEventRecord", "cuEventSynchronize", "cuEventElapsedTime"}

// addDependencies is of drivers of CUDA 12.3 on.
const addDependencies = "cuGraphAddDependencies_v2"

// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR.
const attrMajor, attrMinor = 75, 76

// cudaOutOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const cudaOutOfMemory = 2

type cudaLib struct {
	fn    map[string]uintptr
	count int
}

// libcudaPaths are where drivers put their library: where the loader looks, then
// containers, WSL and NixOS.
var libcudaPaths = []string{"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1", "/run/opengl-driver/lib/libcuda.so.1"}

var libcuda = sync.OnceValues(func() (*cudaLib, error) { return loadCUDA(libcudaPaths...) })

func loadCUDA(paths ...string) (*cudaLib, error) {
	// The loader keeps the reason of a failure for each thread.
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	var h uintptr
	var first error
	for _, p := range paths {
		var err error
		if h, err = purego.Dlopen(p, purego.RTLD_NOW|purego.RTLD_GLOBAL); err == nil {
			break
		}
		if first == nil {
			first = err
		}
	}
	if h == 0 {
		return nil, fmt.Errorf("cuda: %w: no NVIDIA driver (%w)", ErrNoDevice, first)
	}
	l := &cudaLib{fn: map[string]uintptr{}}
	for _, n := range cudaFunctions {
		var err error
		if l.fn[n], err = purego.Dlsym(h, n); err != nil {
			return nil, fmt.Errorf("cuda: %w: the NVIDIA driver is too old (%w)", ErrNoDevice, err)
		}
	}
	if f, err := purego.Dlsym(h, addDependencies); err == nil {
		l.fn[addDependencies] = f
	}
	n := new(int32)
	if err := l.call("cuInit", 0); err != nil {
		return nil, fmt.Errorf("cuda: %w: %w", ErrNoDevice, err)
	}
	if err := l.call("cuDeviceGetCount", uintptr(unsafe.Pointer(n))); err != nil {
		return nil, fmt.Errorf("cuda: %w: %w", ErrNoDevice, err)
	}
	l.count = int(*n)
	return l, nil
}

//go:uintptrescapes
func (l *cudaLib) call(name string, args ...uintptr) error {
	r, _, _ := purego.SyscallN(l.fn[name], args...)
	code := uint32(r)
	if code == 0 {
		return nil
	}
	text := new(*byte)
	if r, _, _ := purego.SyscallN(l.fn["cuGetErrorName"], uintptr(code), uintptr(unsafe.Pointer(text))); uint32(r) != 0 || *text == nil {
		return fmt.Errorf("%s: error %d", name, code)
	}
	err := fmt.Errorf("%s: %s", name, cString(unsafe.Pointer(*text)))
	if code == cudaOutOfMemory {
		err = fmt.Errorf("%w: %w", ErrMemory, err)
	}
	return err
}

func (l *cudaLib) name(index int) (string, error) {
	ord, b := new(int32), new([128]byte)
	if err := l.call("cuDeviceGet", uintptr(unsafe.Pointer(ord)), uintptr(index)); err != nil {
		return "", err
	}
	err := l.call("cuDeviceGetName", uintptr(unsafe.Pointer(b)), uintptr(len(b)), uintptr(*ord))
	s, _, _ := strings.Cut(string(b[:]), "\x00")
	return s, err
}

// do runs f on a thread that has the device's context.
func (d *cudaDevice) do(f func() error) error {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	if err := d.call("cuCtxSetCurrent", d.ctx); err != nil {
		return err
	}
	return f()
}
