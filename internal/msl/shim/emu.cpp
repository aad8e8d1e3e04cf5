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
  Fiber *run[32]; // what runs one after the other, from pos to end
  uint32_t pos = 0, end = 0;
  bool stop = false; // after an error
  std::vector<Fiber> f;
  std::vector<uint32_t> order; // of simdgroups
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

template <class T> void shuffle(T *v, size_t n, uint64_t &rng) {
  for (size_t i = n; i > 1; i--) {
    const size_t j = next(rng) % i;
    const T t = v[i - 1];
    v[i - 1] = v[j];
    v[j] = t;
  }
}

// leaves the current fiber for the next one, or for the scheduler
void yield() {
  Engine *e = E;
  Fiber *me = e->cur;
  if (!e->stop && ++e->pos < e->end) {
    e->cur = e->run[e->pos];
    emu_switch(&me->sp, e->cur->sp);
  } else {
    emu_switch(&me->sp, e->sched_sp);
  }
}

void entry() {
  E->fn(&E->cur->t);
  E->cur->st = DONE;
  yield();
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

// runs fibers [lo, hi), a simdgroup, until all wait for the threadgroup or are done
int simdgroup(Engine *e, uint64_t g, uint32_t lo, uint32_t hi, uint64_t &rng, char *err, int errlen) {
  for (;;) {
    e->pos = e->end = 0;
    for (uint32_t i = lo; i < hi; i++)
      if (e->f[i].st == READY) e->run[e->end++] = &e->f[i];
    if (!e->end) return 0;
    if (rng) shuffle(e->run, e->end, rng);
    e->cur = e->run[0];
    emu_switch(&e->sched_sp, e->cur->sp);
    if (msl_chk_error)
      if (int rc = msl_chk_error(err, errlen)) return rc;
    uint32_t waiting = 0;
    const Fiber *first = nullptr;
    bool same = true;
    for (uint32_t i = lo; i < hi; i++) {
      const Fiber *f = &e->f[i];
      if (f->st != SIMD && f->st != SIMDBAR) continue;
      waiting++;
      if (!first) first = f;
      else same &= f->site == first->site;
    }
    if (!waiting) return 0;
    if (waiting != hi - lo || !same) {
      snprintf(err, errlen, "simdgroup %u of threadgroup %llu diverged: lane 0 at %s, lane %u at %s; %u of %u lanes at a simd op%s", lo / 32,
               (unsigned long long)g, st_name(e->f[lo].st), hi - lo - 1, st_name(e->f[hi - 1].st), waiting, hi - lo, same ? "" : ", at different call sites");
      return MSL_ERR_DIVERGE;
    }
    if (first->st == SIMD) {
      void *l[32];
      for (uint32_t i = lo; i < hi; i++) l[i - lo] = e->f[i].mine;
      first->fn(l, int(hi - lo));
    }
    for (uint32_t i = lo; i < hi; i++) e->f[i].st = READY;
  }
}

// runs the fibers of one threadgroup to their end
int group(Engine *e, uint64_t g, uint64_t &rng, char *err, int errlen) {
  const uint32_t n = uint32_t(e->f.size());
  for (;;) {
    if (rng) shuffle(e->order.data(), e->order.size(), rng);
    for (uint32_t s : e->order)
      if (int rc = simdgroup(e, g, s * 32, s * 32 + 32 < n ? s * 32 + 32 : n, rng, err, errlen)) return rc;
    uint32_t waiting = 0;
    const void *site = nullptr;
    bool same = true;
    for (uint32_t i = 0; i < n; i++)
      if (e->f[i].st == TGBAR) {
        if (!waiting++) site = e->f[i].site;
        else same &= e->f[i].site == site;
      }
    if (!waiting) return 0;
    if (waiting != n || !same) {
      snprintf(err, errlen, "threadgroup_barrier of threadgroup %llu reached by %u of %u threads%s", (unsigned long long)g, waiting, n,
               same ? "" : ", at different call sites");
      return MSL_ERR_BARRIER;
    }
    for (uint32_t i = 0; i < n; i++) e->f[i].st = READY;
  }
}
} // namespace

extern "C" {
unsigned msl_lane(void) { return E->cur->t.lane; }
void msl_early(int on) {
  if (MslThread *t = msl_cur()) t->early = on;
}
MslThread *msl_cur(void) { return E && E->cur ? &E->cur->t : nullptr; }
// gives up the current GPU thread after an error
void msl_abandon(void) {
  E->stop = true;
  E->cur->st = DONE;
  yield();
}
void msl_simd_collective(const void *site, void (*fn)(void **, int), void *mine) {
  Fiber *f = E->cur;
  f->st = SIMD;
  f->site = site;
  f->fn = fn;
  f->mine = mine;
  yield();
}
void msl_simd_barrier(const void *site, int flags) {
  Fiber *f = E->cur;
  f->st = SIMDBAR;
  f->site = site;
  yield();
  if (flags & 2) f->t.ep_sg[0]++;
  if (flags & 1) f->t.ep_sg[1]++;
}
void msl_tg_barrier(const void *site, int flags) {
  Fiber *f = E->cur;
  f->st = TGBAR;
  f->site = site;
  yield();
  if (flags & 2) f->t.ep_tg[0]++;
  if (flags & 1) f->t.ep_tg[1]++;
}

MslTramp msl_find(const MslKernel *table, const char *name) {
  for (const MslKernel *k = table; k->name; k++)
    if (!strcmp(k->name, name)) return k->fn;
  return nullptr;
}

uint32_t msl_size(const MslKernel *table, const char *name, int index) {
  for (const MslKernel *k = table; k->name; k++)
    if (!strcmp(k->name, name)) return k->size[index];
  return 0;
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
  e->stop = false;
  e->f.resize(n);
  e->order.resize((n + 31) / 32);
  for (uint32_t i = 0; i < e->order.size(); i++) e->order[i] = i;
  for (uint32_t i = 0; i < n; i++) {
    Fiber *f = &e->f[i];
    MslThread &t = f->t;
    f->stack = t.stack = e->stacks + (size_t)i * kStack;
    t.stack_end = f->stack + kStack;
    t.d = d;
    for (int b = 0; b < 8; b++) t.tgmem[b] = d->tgmem[b] ? e->tgm + off[b] : nullptr;
    t.tpitg[0] = i % d->tg[0];
    t.tpitg[1] = i / d->tg[0] % d->tg[1];
    t.tpitg[2] = i / d->tg[0] / d->tg[1];
    t.tiitg = i;
    t.lane = i % 32;
    t.sg = i / 32;
    t.nsg = (n + 31) / 32;
  }
  uint64_t rng = d->seed * 0x9E3779B97F4A7C15ull;
  std::vector<uint64_t> order;
  if (rng) {
    for (uint64_t i = first; i < last; i++) order.push_back(i);
    shuffle(order.data(), order.size(), rng);
  }
  if (msl_chk_dispatch) msl_chk_dispatch(d);
  int rc = 0;
  for (uint64_t gi = first; gi < last && !rc; gi++) {
    const uint64_t g = rng ? order[gi - first] : gi;
    // NaN as half and as float
    for (int i = 0; i < 8; i++) memset(e->tgm + off[i], 0xFF, d->tgmem[i]);
    if (msl_chk_group) msl_chk_group(d, e->tgm, off);
    const uint32_t x = uint32_t(g % d->grid[0]), y = uint32_t(g / d->grid[0] % d->grid[1]), z = uint32_t(g / d->grid[0] / d->grid[1]);
    for (uint32_t i = 0; i < n; i++) {
      Fiber *f = &e->f[i];
      f->st = READY;
      MslThread &t = f->t;
      t.tgpig[0] = x, t.tgpig[1] = y, t.tgpig[2] = z;
      t.ep_tg[0] = t.ep_tg[1] = t.ep_sg[0] = t.ep_sg[1] = 0;
      t.early = 0;
      prepare(f);
    }
    rc = group(e, g, rng, err, errlen);
  }
  e->cur = nullptr;
  return rc;
}
}
