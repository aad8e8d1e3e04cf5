//go:build (darwin || linux) && (amd64 || arm64) && !nogpu

package metal

import (
	"errors"
	"fmt"
	goruntime "runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"
)

// id is an Objective-C object, selector or class.
type id = uintptr

// The system's libraries; tests put a stand-in for all of them here. Without
// CoreGraphics a program without windows gets no default device.
var (
	objcPath   = "/usr/lib/libobjc.A.dylib"
	frameworks = []string{
		"/System/Library/Frameworks/Foundation.framework/Foundation",
		"/System/Library/Frameworks/CoreGraphics.framework/CoreGraphics",
		"/System/Library/Frameworks/Metal.framework/Metal",
	}
)

// objc holds the entry points of the run time. Messages go through SyscallN and
// not through the reflection of registered functions, which takes ten times as
// long; the functions with float results or structs by value need it.
var objc struct {
	send, class, selector, push, pop, device, devices uintptr
	sendFloat                                         func(id, id) float64
	sendSizes                                         func(id, id, mtlSize, mtlSize)
}

// mtlSize is MTLSize, three NSUInteger.
type mtlSize struct{ w, h, d uint64 }

// sel are the selectors in use, registered once: the run time takes a lock for it.
var sel struct {
	alloc, init, release, retain, respondsToSelector, utf8String, initWithUTF8String, localizedDescription,
	count, objectAtIndex, name, registryID, hasUnifiedMemory, supportsFamily, maxBufferLength, recommendedMaxWorkingSetSize, maxThreadgroupMemoryLength,
	newCommandQueue, newFence, newBufferWithLength, newBufferWithBytesNoCopy, contents, gpuAddress,
	newLibraryWithSource, setMathMode, setMathFloatingPointFunctions, setFastMathEnabled, setLanguageVersion,
	setConstantValue, newFunctionWithName, newComputePipelineStateWithFunction, maxTotalThreadsPerThreadgroup, threadExecutionWidth,
	setInitialCapacity, newResidencySet, addAllocation, commit, requestResidency, endResidency, addResidencySet, removeResidencySet,
	commandBuffer, computeCommandEncoder, setComputePipelineState, setBuffer, setBytes, setThreadgroupMemoryLength, useResource,
	waitForFence, updateFence, dispatchThreadgroups, memoryBarrierWithScope, endEncoding,
	waitUntilCompleted, status, err, gpuStartTime, gpuEndTime, kernelStartTime, kernelEndTime id
}

var selectors = []struct {
	name string
	sel  *id
}{
	{"alloc", &sel.alloc}, {"init", &sel.init}, {"release", &sel.release}, {"retain", &sel.retain},
	{"respondsToSelector:", &sel.respondsToSelector}, {"UTF8String", &sel.utf8String}, {"initWithUTF8String:", &sel.initWithUTF8String},
	{"localizedDescription", &sel.localizedDescription}, {"count", &sel.count}, {"objectAtIndex:", &sel.objectAtIndex},
	{"name", &sel.name}, {"registryID", &sel.registryID}, {"hasUnifiedMemory", &sel.hasUnifiedMemory}, {"supportsFamily:", &sel.supportsFamily},
	{"maxBufferLength", &sel.maxBufferLength}, {"recommendedMaxWorkingSetSize", &sel.recommendedMaxWorkingSetSize},
	{"maxThreadgroupMemoryLength", &sel.maxThreadgroupMemoryLength}, {"newCommandQueue", &sel.newCommandQueue}, {"newFence", &sel.newFence},
	{"newBufferWithLength:options:", &sel.newBufferWithLength},
	{"newBufferWithBytesNoCopy:length:options:deallocator:", &sel.newBufferWithBytesNoCopy}, {"contents", &sel.contents}, {"gpuAddress", &sel.gpuAddress},
	{"newLibraryWithSource:options:error:", &sel.newLibraryWithSource}, {"setMathMode:", &sel.setMathMode},
	{"setMathFloatingPointFunctions:", &sel.setMathFloatingPointFunctions}, {"setFastMathEnabled:", &sel.setFastMathEnabled},
	{"setLanguageVersion:", &sel.setLanguageVersion}, {"setConstantValue:type:atIndex:", &sel.setConstantValue},
	{"newFunctionWithName:constantValues:error:", &sel.newFunctionWithName},
	{"newComputePipelineStateWithFunction:error:", &sel.newComputePipelineStateWithFunction},
	{"maxTotalThreadsPerThreadgroup", &sel.maxTotalThreadsPerThreadgroup}, {"threadExecutionWidth", &sel.threadExecutionWidth},
	{"setInitialCapacity:", &sel.setInitialCapacity}, {"newResidencySetWithDescriptor:error:", &sel.newResidencySet},
	{"addAllocation:", &sel.addAllocation}, {"commit", &sel.commit}, {"requestResidency", &sel.requestResidency}, {"endResidency", &sel.endResidency},
	{"addResidencySet:", &sel.addResidencySet}, {"removeResidencySet:", &sel.removeResidencySet},
	{"commandBufferWithUnretainedReferences", &sel.commandBuffer}, {"computeCommandEncoderWithDispatchType:", &sel.computeCommandEncoder},
	{"setComputePipelineState:", &sel.setComputePipelineState}, {"setBuffer:offset:atIndex:", &sel.setBuffer}, {"setBytes:length:atIndex:", &sel.setBytes},
	{"setThreadgroupMemoryLength:atIndex:", &sel.setThreadgroupMemoryLength}, {"useResource:usage:", &sel.useResource},
	{"waitForFence:", &sel.waitForFence}, {"updateFence:", &sel.updateFence},
	{"dispatchThreadgroups:threadsPerThreadgroup:", &sel.dispatchThreadgroups}, {"memoryBarrierWithScope:", &sel.memoryBarrierWithScope},
	{"endEncoding", &sel.endEncoding}, {"waitUntilCompleted", &sel.waitUntilCompleted}, {"status", &sel.status}, {"error", &sel.err},
	{"GPUStartTime", &sel.gpuStartTime}, {"GPUEndTime", &sel.gpuEndTime}, {"kernelStartTime", &sel.kernelStartTime}, {"kernelEndTime", &sel.kernelEndTime},
}

// loadObjC opens the libraries, once.
var loadObjC = sync.OnceValue(func() error {
	runtime, err := purego.Dlopen(objcPath, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return fmt.Errorf("metal: %w: %w", ErrNoDevice, err)
	}
	metal := runtime
	for _, p := range frameworks { // the last one is Metal
		if metal, err = purego.Dlopen(p, purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
			return fmt.Errorf("metal: %w: %w", ErrNoDevice, err)
		}
	}
	for _, s := range []struct {
		lib  uintptr
		name string
		dst  *uintptr
	}{
		{runtime, "objc_msgSend", &objc.send}, {runtime, "objc_getClass", &objc.class}, {runtime, "sel_registerName", &objc.selector},
		{runtime, "objc_autoreleasePoolPush", &objc.push}, {runtime, "objc_autoreleasePoolPop", &objc.pop},
		{metal, "MTLCreateSystemDefaultDevice", &objc.device}, {metal, "MTLCopyAllDevices", &objc.devices},
	} {
		if *s.dst, err = purego.Dlsym(s.lib, s.name); err != nil {
			return fmt.Errorf("metal: %w: %w", ErrNoDevice, err)
		}
	}
	purego.RegisterFunc(&objc.sendFloat, objc.send)
	if goruntime.GOARCH == "amd64" {
		purego.RegisterFunc(&objc.sendSizes, objc.send)
	}
	for _, s := range selectors {
		name := append([]byte(s.name), 0)
		*s.sel, _, _ = purego.SyscallN(objc.selector, uintptr(unsafe.Pointer(&name[0])))
	}
	return nil
})

// messages are argument lists in use again: thousands are sent for a token.
var messages = sync.Pool{New: func() any { return new([8]uintptr) }}

// msg sends a message whose arguments and result are integers or pointers.
//
//go:uintptrescapes
func msg(o, s id, args ...uintptr) uintptr {
	a := messages.Get().(*[8]uintptr)
	defer messages.Put(a)
	a[0], a[1] = o, s
	r, _, _ := purego.SyscallN(objc.send, a[:2+copy(a[2:], args)]...)
	return r
}

// yes sends a message that answers a BOOL, of which only one byte is defined.
//
//go:uintptrescapes
func yes(o, s id, args ...uintptr) bool { return msg(o, s, args...)&0xFF != 0 }

func responds(o, s id) bool { return yes(o, sel.respondsToSelector, s) }

// instance is a new object of a class, or 0 if the system has no such class.
func instance(class string) id {
	name := append([]byte(class), 0)
	c, _, _ := purego.SyscallN(objc.class, uintptr(unsafe.Pointer(&name[0])))
	if c == 0 {
		return 0
	}
	return msg(msg(c, sel.alloc), sel.init)
}

// nsString is a new NSString; text that is not UTF-8 gives 0.
func nsString(s string) id {
	class, text := append([]byte("NSString"), 0), append([]byte(s), 0)
	c, _, _ := purego.SyscallN(objc.class, uintptr(unsafe.Pointer(&class[0])))
	return msg(msg(c, sel.alloc), sel.initWithUTF8String, uintptr(unsafe.Pointer(&text[0])))
}

func goString(ns id) string {
	if ns == 0 {
		return ""
	}
	p := msg(ns, sel.utf8String)
	if p == 0 {
		return ""
	}
	return cString(pointer(p))
}

// pointer is for addresses that came from C and never move.
func pointer(p uintptr) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(&p)) }

// cString copies text that ends with a zero byte.
func cString(p unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

// pool runs f on one thread inside an autorelease pool: pools belong to
// threads, and goroutines move between them.
func pool(f func()) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	p, _, _ := purego.SyscallN(objc.push)
	defer purego.SyscallN(objc.pop, p)
	f()
}

func nsError(what string, e id) error {
	if e == 0 {
		return errors.New(what)
	}
	return fmt.Errorf("%s: %s", what, goString(msg(e, sel.localizedDescription)))
}
