// The checker, for kernels whose only synchronisation is barriers. Kernels are
// compiled with -fsanitize=thread for its load and store hooks and with
// -fsanitize=alignment,... -fsanitize-minimal-runtime; this file takes the
// place of both runtimes, so it works in a loaded library and knows the rules
// of GPUs: barriers of threadgroups and of simdgroups, for threadgroup and for
// device memory each; threadgroups unordered; dispatches ordered by the host's
// barriers only.
#include "emu.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <map>
#include <vector>

namespace {
struct Access {
  uint32_t group;     // threadgroup instance, 0: nobody
  uint32_t interval;  // host barrier interval
  uint16_t tid, tg, sg, pad;
  uint64_t pc;
};
struct Shadow { Access w, r0, r1; };
struct Region {
  char *p;
  size_t n;
  int buf;  // -1: reached through a pointer
  bool ro, tgm;
  Shadow *sh;
  uint8_t *init;
  Shadow *ever;  // null: no dispatch wrote it
};

uint32_t g_interval = 1, g_group = 0;
std::vector<Region> g_reg;
struct Buf { size_t n; Shadow *sh; };
std::map<char *, Buf> g_bufs; // by the buffer's end: bindings may start inside
char *g_tgsh;
size_t g_tgn;
const char *g_consts[2];
char g_err[1024];
int g_rc;

Shadow *shadow_alloc(size_t n) {
  return (Shadow *)mmap(nullptr, n * sizeof(Shadow), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
}

const char *where(uint64_t pc, char *buf, size_t n) {
  Dl_info di;
  if (dladdr((void *)pc, &di) && di.dli_fname) snprintf(buf, n, "%s+0x%llx", di.dli_fname, (unsigned long long)(pc - 1 - (uint64_t)di.dli_fbase));
  else snprintf(buf, n, "0x%llx", (unsigned long long)pc);
  return buf;
}

void name(const Region *r, char *s, size_t n) {
  if (r->tgm) snprintf(s, n, "threadgroup memory %d", r->buf);
  else if (r->buf < 0) snprintf(s, n, "a used buffer");
  else snprintf(s, n, "buffer %d", r->buf);
}

void fail(const char *what, const MslThread *t, const Region *r, const char *addr, unsigned size, bool wr, uint64_t pc, const Access *o) {
  if (g_rc) return;
  char a[400], b[400], nm[64], other[500] = "";
  if (r) name(r, nm, sizeof nm);
  if (o)
    snprintf(other, sizeof other, "; earlier access by thread %u of %s at %s", o->tid, o->group == g_group ? "the same threadgroup" : "another threadgroup or dispatch",
             where(o->pc, b, sizeof b));
  int l = snprintf(g_err, sizeof g_err, "%s", what);
  if (size) l += snprintf(g_err + l, sizeof g_err - l, ": %s of %u bytes", wr ? "write" : "read", size);
  if (r) l += snprintf(g_err + l, sizeof g_err - l, " at %s+%lld", nm, (long long)(addr - r->p));
  snprintf(g_err + l, sizeof g_err - l, " by thread %u (simdgroup %u lane %u) of threadgroup (%u,%u,%u) at %s%s", t->tiitg, t->sg, t->lane, t->tgpig[0],
           t->tgpig[1], t->tgpig[2], where(pc, a, sizeof a), other);
  g_rc = MSL_ERR_MEM;
}

inline bool ordered(const Access &a, const MslThread *t, int k) {
  if (!a.group || a.interval != g_interval) return true;
  if (a.group != g_group) return k == 0; // threadgroup memory is reused by the next group
  if (a.tid == t->tiitg || a.tg != t->ep_tg[k]) return true;
  return a.tid / 32u == t->sg && a.sg != t->ep_sg[k];
}

// the binding that an access at p goes through: buffers may be bound several
// times, and a write is allowed if one of the bindings allows it
Region *find(char *p, bool wr, bool *twice) {
  Region *best = nullptr;
  for (Region &r : g_reg) {
    if (p < r.p || p >= r.p + r.n) continue;
    if (!best) best = &r;
    else if (best->ro != r.ro) {
      *twice = true;
      if (wr == best->ro) best = &r;
    }
  }
  return best;
}

void access(char *p, unsigned size, bool wr, unsigned align, uint64_t pc) {
  MslThread *t = msl_cur();
  if (!t || (p >= t->stack && p < t->stack_end)) return;
  bool twice = false;
  if (Region *found = find(p, wr, &twice)) {
    Region &r = *found;
    if (p + size > r.p + r.n) { fail("out of bounds", t, &r, p, size, wr, pc, nullptr); msl_abandon(); }
    if ((uintptr_t)p % align) { fail("misaligned", t, &r, p, size, wr, pc, nullptr); msl_abandon(); }
    if (wr && r.ro) { fail("write to a read-only binding", t, &r, p, size, wr, pc, nullptr); msl_abandon(); }
    if (r.init) {
      uint8_t *in = r.init + (p - r.p);
      for (unsigned i = 0; i < size; i++) {
        if (wr) in[i] = 1;
        else if (!in[i]) { fail("uninitialised buffer", t, &r, p, size, wr, pc, nullptr); msl_abandon(); }
      }
    }
    for (unsigned i = 0; t->early && !r.tgm && i < size; i++) {
      const Access *o = r.ever && r.ever[p - r.p + i].w.group ? &r.ever[p - r.p + i].w : nullptr;
      if (wr || o) { fail("before inputs_ready()", t, &r, p, size, wr, pc, o); msl_abandon(); }
    }
    if (!r.sh) return;
    const int k = r.tgm ? 0 : 1;
    const Access me = {g_group, g_interval, uint16_t(t->tiitg), t->ep_tg[k], t->ep_sg[k], 0, pc};
    for (unsigned i = 0; i < size; i++) {
      Shadow &s = r.sh[p - r.p + i];
      if (r.tgm && !wr && s.w.group != g_group) { fail("uninitialised threadgroup memory", t, &r, p, size, wr, pc, nullptr); msl_abandon(); }
      if (!ordered(s.w, t, k)) { fail("data race", t, &r, p, size, wr, pc, &s.w); msl_abandon(); }
      if (wr) {
        if (!ordered(s.r0, t, k)) { fail("data race", t, &r, p, size, wr, pc, &s.r0); msl_abandon(); }
        if (!ordered(s.r1, t, k)) { fail("data race", t, &r, p, size, wr, pc, &s.r1); msl_abandon(); }
        s.w = me;
      } else {
        // compilers may take a const parameter's memory for unchanging
        if (twice && s.w.group == g_group && s.w.interval == g_interval) { fail("read of what another binding wrote", t, &r, p, size, wr, pc, &s.w); msl_abandon(); }
        if (s.r0.group != me.group || s.r0.tid != me.tid) s.r1 = s.r0;
        s.r0 = me;
      }
    }
    return;
  }
  if (!wr && p >= g_consts[0] && p < g_consts[1]) return;
  Dl_info di;
  if (!wr && dladdr(p, &di)) return; // initialisers that the compiler keeps in the library
  fail("out of bounds", t, nullptr, p, size, wr, pc, nullptr);
  // name the nearest region
  const Region *best = nullptr; long long bd = 1ll << 40;
  for (Region &r : g_reg) {
    long long d = p < r.p ? r.p - p : p - (r.p + r.n);
    if (d < bd) bd = d, best = &r;
  }
  if (best) {
    size_t l = strlen(g_err);
    char nm[64];
    name(best, nm, sizeof nm);
    snprintf(g_err + l, sizeof g_err - l, " (%lld bytes %s %s)", bd, p < best->p ? "before" : "behind", nm);
  }
  msl_abandon();
}

// shadows are laid out from the end of the buffer and as long as its longest binding
void reserve(const MslRegion &m) {
  if (!m.p || !m.track) return;
  Buf &b = g_bufs[m.p + m.n];
  if (b.n >= m.n) return;
  const size_t n = (m.n + 4095) & ~(size_t)4095;
  Shadow *s = shadow_alloc(n);
  if (b.sh) {
    memcpy((void *)(s + n - b.n), b.sh, b.n * sizeof(Shadow));
    munmap((void *)b.sh, b.n * sizeof(Shadow));
  }
  b.sh = s, b.n = n;
}

void add(const MslRegion &m, int buf) {
  if (!m.p) return;
  Region r = {m.p, size_t(m.n), buf, m.ro != 0, false, nullptr, m.init, nullptr};
  auto b = g_bufs.find(m.p + m.n);
  if (b != g_bufs.end() && b->second.n >= m.n) r.ever = b->second.sh + (b->second.n - m.n);
  if (m.track) r.sh = r.ever;
  g_reg.push_back(r);
}
} // namespace

extern "C" {
void msl_chk_dispatch(const MslDispatch *d) {
  g_rc = 0;
  g_err[0] = 0;
  g_reg.clear();
  size_t tot = 0;
  for (int i = 0; i < 8; i++) tot += 256 + ((d->tgmem[i] + 15) & ~15u);
  if (g_tgn < tot) g_tgsh = (char *)shadow_alloc(tot), g_tgn = tot;
  g_consts[0] = d->consts[0], g_consts[1] = d->consts[1];
  for (int i = 0; i < 31; i++) reserve(d->bufs[i]);
  for (uint64_t i = 0; i < d->nextra; i++) reserve(d->extra[i]);
  for (int i = 0; i < 31; i++) add(d->bufs[i], i);
  for (uint64_t i = 0; i < d->nextra; i++) add(d->extra[i], -1);
}
void msl_chk_group(const MslDispatch *d, char *tgm, const size_t *off) {
  g_group++;
  while (!g_reg.empty() && g_reg.back().tgm) g_reg.pop_back();
  for (int i = 0; i < 8; i++)
    if (d->tgmem[i]) g_reg.push_back({tgm + off[i], d->tgmem[i], i, false, true, (Shadow *)g_tgsh + off[i], nullptr, nullptr});
}
int msl_chk_error(char *err, int n) {
  if (g_rc) snprintf(err, n, "%s", g_err);
  return g_rc;
}
void msl_chk_host_barrier(void) { g_interval++; }
// a buffer is gone: another may come to lie at its address
void msl_chk_forget(char *end) {
  auto it = g_bufs.find(end);
  if (it == g_bufs.end()) return;
  munmap((void *)it->second.sh, it->second.n * sizeof(Shadow));
  g_bufs.erase(it);
}

#define PC (uint64_t) __builtin_return_address(0)
#define RW(n)                                                                       \
  void __tsan_read##n(void *p) { access((char *)p, n, false, n, PC); }              \
  void __tsan_write##n(void *p) { access((char *)p, n, true, n, PC); }
RW(1) RW(2) RW(4) RW(8) RW(16)
#define URW(n)                                                                      \
  void __tsan_unaligned_read##n(void *p) { access((char *)p, n, false, 1, PC); }    \
  void __tsan_unaligned_write##n(void *p) { access((char *)p, n, true, 1, PC); }
URW(2) URW(4) URW(8) URW(16)
void __tsan_init(void) {}
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void) {}
void __tsan_vptr_update(void **, void *) {}
void __tsan_vptr_read(void **) {}
void *__tsan_memcpy(void *d, const void *s, size_t n) {
  access((char *)s, n, false, 1, PC);
  access((char *)d, n, true, 1, PC);
  return memcpy(d, s, n);
}
void *__tsan_memmove(void *d, const void *s, size_t n) { return __tsan_memcpy(d, s, n); }
void *__tsan_memset(void *d, int c, size_t n) {
  access((char *)d, n, true, 1, PC);
  return memset(d, c, n);
}
#define UB(name)                                                    \
  void __ubsan_handle_##name##_minimal(void) {                      \
    MslThread *t = msl_cur();                                       \
    if (!t) return;                                                 \
    fail("undefined behaviour (" #name ")", t, nullptr, nullptr, 0, false, PC, nullptr); \
    msl_abandon();                                                  \
  }
UB(type_mismatch) UB(alignment_assumption) UB(add_overflow) UB(sub_overflow) UB(mul_overflow) UB(negate_overflow) UB(divrem_overflow)
UB(shift_out_of_bounds) UB(out_of_bounds) UB(float_cast_overflow) UB(load_invalid_value) UB(vla_bound_not_positive) UB(pointer_overflow)
UB(implicit_conversion) UB(invalid_builtin) UB(missing_return) UB(builtin_unreachable) UB(nonnull_arg)
}
