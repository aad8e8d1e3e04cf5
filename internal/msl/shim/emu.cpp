// The emulator's engine: one fiber a GPU thread, cooperative and deterministic.
// Fibers yield where GPU threads wait for each other: simdgroup operations and
// barriers.
#include "emu.h"
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <vector>

extern "C" void emu_switch(void **save, void *to);
#if defined(__x86_64__)
asm(R"(
.text
.p2align 4
.globl emu_switch
.hidden emu_switch
.type emu_switch,@function
emu_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  retq
.size emu_switch,.-emu_switch
)");
#elif defined(__aarch64__)
asm(R"(
.text
.p2align 4
.globl emu_switch
.hidden emu_switch
.type emu_switch,%function
emu_switch:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x2, sp
  str x2, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_switch,.-emu_switch
)");
#else
#error "emu_switch is written for amd64 and arm64"
#endif

namespace {
const size_t kStack = 64 << 10;
enum State : uint8_t { READY, SIMD, SIMDBAR, TGBAR, DONE };

struct Fiber {
  void *sp;
  char *stack;
  State st;
  const void *site;
  void (*fn)(void **, int);
  void *mine;
  int flags;
  MslThread t;
};

struct Engine {
  void *sched_sp = nullptr;
  Fiber *cur = nullptr;
  std::vector<Fiber> f;
  std::vector<uint32_t> order;
  char *stacks = nullptr;
  size_t nstacks = 0;
  char *tgm = nullptr;
  size_t ntgm = 0;
  MslTramp fn = nullptr;
};
thread_local Engine *E;

uint64_t next(uint64_t &s) {
  s ^= s << 13;
  s ^= s >> 7;
  s ^= s << 17;
  return s;
}

template <class T> void shuffle(std::vector<T> &v, uint64_t &rng) {
  for (size_t i = v.size(); i > 1; i--) {
    const size_t j = next(rng) % i;
    const T t = v[i - 1];
    v[i - 1] = v[j];
    v[j] = t;
  }
}

void to_sched() { emu_switch(&E->cur->sp, E->sched_sp); }

void entry() {
  E->fn(&E->cur->t);
  E->cur->st = DONE;
  to_sched();
  __builtin_trap();
}

void prepare(Fiber *f) {
  const uintptr_t top = ((uintptr_t)f->stack + kStack) & ~(uintptr_t)15;
#if defined(__x86_64__)
  // six callee-saved registers, then the return address; at entry rsp % 16 == 8
  void **sp = (void **)(top - 64);
  memset(sp, 0, 64);
  sp[6] = (void *)&entry;
#else
  void **sp = (void **)(top - 160);
  memset(sp, 0, 160);
  sp[11] = (void *)&entry; // x30
#endif
  f->sp = sp;
}

const char *st_name(State s) {
  static const char *n[] = {"ready", "simd op", "simdgroup_barrier", "threadgroup_barrier", "done"};
  return n[s];
}

void *grow(void *old, size_t &have, size_t want) {
  if (have >= want) return old;
  if (old) munmap(old, have);
  void *p = mmap(nullptr, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  have = p == MAP_FAILED ? 0 : want;
  return p == MAP_FAILED ? nullptr : p;
}

// runs the fibers of one threadgroup to their end
int group(Engine *e, uint64_t g, uint64_t &rng, char *err, int errlen) {
  const uint32_t n = uint32_t(e->f.size()), nsg = (n + 31) / 32;
  for (;;) {
    if (rng) shuffle(e->order, rng);
    for (uint32_t i = 0; i < n; i++) {
      Fiber *f = &e->f[e->order[i]];
      if (f->st != READY) continue;
      e->cur = f;
      emu_switch(&e->sched_sp, f->sp);
      if (msl_chk_error)
        if (int rc = msl_chk_error(err, errlen)) return rc;
    }
    uint32_t done = 0, tgbar = 0;
    bool progress = false;
    for (uint32_t s = 0; s < nsg; s++) {
      const uint32_t lo = s * 32, hi = lo + 32 < n ? lo + 32 : n;
      uint32_t ns = 0, nb = 0, nd = 0;
      const void *site = nullptr;
      bool same = true;
      void (*fn)(void **, int) = nullptr;
      for (uint32_t i = lo; i < hi; i++) {
        Fiber *f = &e->f[i];
        if (f->st == SIMD || f->st == SIMDBAR) {
          ns++;
          if (!site) site = f->site, fn = f->st == SIMD ? f->fn : nullptr;
          else if (site != f->site) same = false;
        } else if (f->st == TGBAR) nb++;
        else nd++;
      }
      done += nd;
      tgbar += nb;
      if (!ns) continue;
      if (ns != hi - lo || !same) {
        snprintf(err, errlen, "simdgroup %u of threadgroup %llu diverged: lane 0 at %s, lane %u at %s; %u of %u lanes at a simd op%s", s,
                 (unsigned long long)g, st_name(e->f[lo].st), hi - lo - 1, st_name(e->f[hi - 1].st), ns, hi - lo,
                 same ? "" : ", at different call sites");
        return MSL_ERR_DIVERGE;
      }
      if (fn) {
        void *l[32];
        for (uint32_t i = lo; i < hi; i++) l[i - lo] = e->f[i].mine;
        fn(l, int(hi - lo));
      }
      for (uint32_t i = lo; i < hi; i++) e->f[i].st = READY;
      progress = true;
    }
    if (progress) continue;
    if (done == n) return 0;
    const void *site = nullptr;
    bool same = true;
    for (uint32_t i = 0; i < n; i++)
      if (e->f[i].st == TGBAR) {
        if (!site) site = e->f[i].site;
        else if (site != e->f[i].site) same = false;
      }
    if (tgbar != n || !same) {
      snprintf(err, errlen, "threadgroup_barrier of threadgroup %llu reached by %u of %u threads%s", (unsigned long long)g, tgbar, n,
               same ? "" : ", at different call sites");
      return MSL_ERR_BARRIER;
    }
    for (uint32_t i = 0; i < n; i++) e->f[i].st = READY;
  }
}
} // namespace

extern "C" {
unsigned msl_lane(void) { return E->cur->t.lane; }
MslThread *msl_cur(void) { return E && E->cur ? &E->cur->t : nullptr; }
// gives up the current GPU thread after an error
void msl_abandon(void) {
  E->cur->st = DONE;
  to_sched();
}
void msl_simd_collective(const void *site, void (*fn)(void **, int), void *mine) {
  Fiber *f = E->cur;
  f->st = SIMD;
  f->site = site;
  f->fn = fn;
  f->mine = mine;
  to_sched();
}
void msl_simd_barrier(const void *site, int flags) {
  Fiber *f = E->cur;
  f->st = SIMDBAR;
  f->site = site;
  to_sched();
  if (flags & 2) f->t.ep_sg[0]++;
  if (flags & 1) f->t.ep_sg[1]++;
}
void msl_tg_barrier(const void *site, int flags) {
  Fiber *f = E->cur;
  f->st = TGBAR;
  f->site = site;
  to_sched();
  if (flags & 2) f->t.ep_tg[0]++;
  if (flags & 1) f->t.ep_tg[1]++;
}

MslTramp msl_find(const MslKernel *table, const char *name) {
  for (const MslKernel *k = table; k->name; k++)
    if (!strcmp(k->name, name)) return k->fn;
  return nullptr;
}

int msl_run(MslTramp fn, const MslDispatch *d, uint64_t first, uint64_t last, char *err, int errlen) {
  if (!E) E = new Engine();
  Engine *e = E;
  const uint32_t n = d->tg[0] * d->tg[1] * d->tg[2];
  // threadgroup memory: each block between guard gaps
  size_t tot = 0, off[8];
  for (int i = 0; i < 8; i++) {
    off[i] = tot + 128;
    tot += 256 + ((d->tgmem[i] + 15) & ~15u);
  }
  e->stacks = (char *)grow(e->stacks, e->nstacks, n * kStack);
  e->tgm = (char *)grow(e->tgm, e->ntgm, tot);
  if (!e->stacks || !e->tgm) {
    snprintf(err, errlen, "no memory for %u threads", n);
    return MSL_ERR_MEM;
  }
  e->fn = fn;
  e->f.resize(n);
  e->order.resize(n);
  for (uint32_t i = 0; i < n; i++) e->order[i] = i;
  uint64_t rng = d->seed * 0x9E3779B97F4A7C15ull;
  std::vector<uint64_t> order;
  if (rng) {
    for (uint64_t i = first; i < last; i++) order.push_back(i);
    shuffle(order, rng);
  }
  if (msl_chk_dispatch) msl_chk_dispatch(d);
  int rc = 0;
  for (uint64_t gi = first; gi < last && !rc; gi++) {
    const uint64_t g = rng ? order[gi - first] : gi;
    // NaN as half and as float
    for (int i = 0; i < 8; i++) memset(e->tgm + off[i], 0xFF, d->tgmem[i]);
    if (msl_chk_group) msl_chk_group(d, e->tgm, off);
    for (uint32_t i = 0; i < n; i++) {
      Fiber *f = &e->f[i];
      f->stack = e->stacks + (size_t)i * kStack;
      f->st = READY;
      MslThread &t = f->t;
      t.d = d;
      for (int b = 0; b < 8; b++) t.tgmem[b] = d->tgmem[b] ? e->tgm + off[b] : nullptr;
      t.tgpig[0] = uint32_t(g % d->grid[0]);
      t.tgpig[1] = uint32_t(g / d->grid[0] % d->grid[1]);
      t.tgpig[2] = uint32_t(g / d->grid[0] / d->grid[1]);
      t.tpitg[0] = i % d->tg[0];
      t.tpitg[1] = i / d->tg[0] % d->tg[1];
      t.tpitg[2] = i / d->tg[0] / d->tg[1];
      t.tiitg = i;
      t.lane = i % 32;
      t.sg = i / 32;
      t.nsg = (n + 31) / 32;
      t.ep_tg[0] = t.ep_tg[1] = t.ep_sg[0] = t.ep_sg[1] = 0;
      t.stack = f->stack;
      t.stack_end = f->stack + kStack;
      prepare(f);
    }
    rc = group(e, g, rng, err, errlen);
  }
  e->cur = nullptr;
  return rc;
}
}
