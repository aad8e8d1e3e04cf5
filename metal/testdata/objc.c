// A stand-in for libobjc and Metal on Linux: every message goes to one Go
// callback, so that the code for macOS runs as it is.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef struct { uint64_t w, h, d; } Size;
typedef struct { uint64_t i, f; } Ret; // integer and floating result
static void (*handler)(const char *sel, uintptr_t self, uint64_t *args, Size *s1, Size *s2, Ret *ret);
void fake_set(void *h) { handler = h; }

#define NAMES 256
static const char *names[NAMES];
static int registered;
static uintptr_t name_of(const char *n) {
  for (int i = 0; i < registered; i++)
    if (!strcmp(names[i], n)) return i + 1;
  if (registered == NAMES) abort();
  names[registered] = strdup(n);
  return ++registered;
}
uintptr_t sel_registerName(const char *n) { return name_of(n); }
// classes answer messages as objects below 0x1000 do
uintptr_t objc_getClass(const char *n) {
  Ret r = {0, 0};
  handler(n, 0, 0, 0, 0, &r);
  return r.i;
}
static uintptr_t event(const char *what, uintptr_t p) {
  Ret r = {0, 0};
  uint64_t a[6] = {p};
  handler(what, 1, a, 0, 0, &r);
  return r.i;
}
void *objc_autoreleasePoolPush(void) { return (void *)event("push", 0); }
void objc_autoreleasePoolPop(void *p) { event("pop", (uintptr_t)p); }
uintptr_t MTLCreateSystemDefaultDevice(void) { return event("default", 0); }
uintptr_t MTLCopyAllDevices(void) { return event("all", 0); }

#if defined(__x86_64__)
// an integer and a double come back in rax and xmm0: right for both callers
typedef struct { uint64_t i; double f; } Both;
Both objc_msgSend(uintptr_t self, uintptr_t sel, uint64_t a, uint64_t b, uint64_t c, uint64_t d, Size s1, Size s2) {
  uint64_t args[6] = {a, b, c, d, 0, 0};
  Ret r = {0, 0};
  handler(names[sel - 1], self, args, &s1, &s2, &r);
  Both o;
  o.i = r.i;
  memcpy(&o.f, &r.f, 8);
  return o;
}
#else
Ret fake_msg(uintptr_t self, uintptr_t sel, uint64_t a, uint64_t b, uint64_t c, uint64_t d) {
  uint64_t args[6] = {a, b, c, d, 0, 0};
  Ret r = {0, 0};
  handler(names[sel - 1], self, args, (Size *)a, (Size *)b, &r); // structs over 16 bytes come as addresses
  return r;
}
__asm__(".text\n.globl objc_msgSend\n.type objc_msgSend,%function\nobjc_msgSend:\n stp x29,x30,[sp,#-16]!\n mov x29,sp\n bl fake_msg\n fmov d0,x1\n ldp x29,x30,[sp],#16\n ret\n");
#endif
