// Devices may start a kernel before those that it depends on have finished, and
// bring these; others start it then. A kernel that loads parts of the model ahead
// says inputs_ready() behind those loads and before it touches anything that
// dispatches write; in others that comes first. From next_may_start() on, those that
// depend on a kernel may take their places; without it that is behind
// inputs_ready(). Large kernels say it late: their like would crowd where there is
// room too early, and leave the rest of the device idle.
#ifndef HAS_INPUTS_READY
static inline void inputs_ready() {}
static inline void next_may_start() {}
#endif

// Loads of what is read once: devices may keep it out of their caches.
#ifndef HAS_STREAM
static inline uint4 stream16(device const uchar* p) { return *(device const uint4*)p; }
static inline uint2 stream8(device const uchar* p) { return *(device const uint2*)p; }
static inline uint stream4(device const uchar* p) { return *(device const uint*)p; }
#endif
