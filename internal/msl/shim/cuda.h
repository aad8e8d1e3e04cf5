// What a CUDA trampoline needs: the positions of a thread from PTX registers.
#pragma once
struct MslDims {
  uint grid[3], tg[3];
  __attribute__((device, always_inline)) const MslDims *operator->() const { return this; }
};
struct MslThread {
  MslDims d;
  uint tgpig[3], tpitg[3], tiitg, lane, sg, nsg;
};
struct msl_g3 {
  uint v[3];
};
extern __attribute__((shared, aligned(128))) char msl_smem[];
static inline __attribute__((device, always_inline)) void msl_thread(MslThread &t) {
  t.tgpig[0] = __nvvm_read_ptx_sreg_ctaid_x();
  t.tgpig[1] = __nvvm_read_ptx_sreg_ctaid_y();
  t.tgpig[2] = __nvvm_read_ptx_sreg_ctaid_z();
  t.tpitg[0] = __nvvm_read_ptx_sreg_tid_x();
  t.tpitg[1] = __nvvm_read_ptx_sreg_tid_y();
  t.tpitg[2] = __nvvm_read_ptx_sreg_tid_z();
  t.d.tg[0] = __nvvm_read_ptx_sreg_ntid_x();
  t.d.tg[1] = __nvvm_read_ptx_sreg_ntid_y();
  t.d.tg[2] = __nvvm_read_ptx_sreg_ntid_z();
  t.d.grid[0] = __nvvm_read_ptx_sreg_nctaid_x();
  t.d.grid[1] = __nvvm_read_ptx_sreg_nctaid_y();
  t.d.grid[2] = __nvvm_read_ptx_sreg_nctaid_z();
  t.tiitg = (t.tpitg[2] * t.d.tg[1] + t.tpitg[1]) * t.d.tg[0] + t.tpitg[0];
  t.lane = t.tiitg % 32u;
  t.sg = t.tiitg / 32u;
  t.nsg = (t.d.tg[0] * t.d.tg[1] * t.d.tg[2] + 31u) / 32u;
}
static inline __attribute__((device)) msl_g3 msl_gpos(const MslThread *t) {
  msl_g3 g;
  for (int i = 0; i < 3; i++) g.v[i] = t->tgpig[i] * t->d.tg[i] + t->tpitg[i];
  return g;
}
