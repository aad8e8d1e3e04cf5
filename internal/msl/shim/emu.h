#pragma once
#include <stddef.h>
#include <stdint.h>

// A range of memory that a kernel may touch.
struct MslRegion {
  char *p;
  uint64_t n;
  uint8_t *init;    // one byte a byte: 0 means never written; null: all is
  uint32_t ro;      // kernels must not write it
  uint32_t track;   // some dispatch of this barrier interval writes it
};

// One dispatch. The layout is mirrored in engine_linux.go.
struct MslDispatch {
  MslRegion bufs[31];
  const MslRegion *extra; // reached through pointers only
  uint64_t nextra;
  const char *consts[2];  // function constants of the library
  uint64_t seed;          // 0: natural order, else permuted schedules
  uint32_t tgmem[8];      // bytes of threadgroup memory per index
  uint32_t grid[3];       // threadgroups
  uint32_t tg[3];         // threads per threadgroup
};

struct MslThread {
  const MslDispatch *d;
  void *tgmem[8];
  uint32_t tgpig[3], tpitg[3];
  uint32_t tiitg, lane, sg, nsg;
  uint16_t ep_tg[2], ep_sg[2]; // barriers passed for threadgroup [0] and device [1] memory
  uint32_t early;              // inputs_ready() is still to come
  char *stack, *stack_end;
};

typedef void (*MslTramp)(const MslThread *);
struct MslKernel {
  const char *name;
  MslTramp fn;
  uint16_t size[31]; // of the structs behind references, by buffer index
};

enum { MSL_ERR_DIVERGE = 1, MSL_ERR_BARRIER = 2, MSL_ERR_MEM = 3 };

extern "C" {
MslTramp msl_find(const MslKernel *table, const char *name);
uint32_t msl_size(const MslKernel *table, const char *name, int index);
// runs threadgroups [first, last) on the calling thread
int msl_run(MslTramp fn, const MslDispatch *d, uint64_t first, uint64_t last, char *err, int errlen);
MslThread *msl_cur(void);
void msl_abandon(void);
// check.cpp, absent in plain builds
__attribute__((weak)) void msl_chk_dispatch(const MslDispatch *d);
__attribute__((weak)) void msl_chk_group(const MslDispatch *d, char *tgm, const size_t *off);
__attribute__((weak)) int msl_chk_error(char *err, int errlen);
}
