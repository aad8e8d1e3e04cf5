// A stand-in for libcuda: memory is the host's, launches go to a Go callback.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
typedef uint64_t P;
static int live, launches, graph_launches, graph_updates;
static int (*module_loaded)(const char *ptx, P *id);
static int (*launch)(P *args);
void fake_set(void *m, void *l) { module_loaded = m, launch = l; }
int fake_live(void) { return live; }
int fake_graphs(void) { return graph_launches * 1000 + graph_updates; }
int cuInit(unsigned f) { return f; }
int cuDeviceGetCount(int *n) { *n = 1; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return i != 0; }
int cuDeviceGetName(char *s, int n, int d) { strncpy(s, "stub GPU", n); return d; }
int cuDeviceGetAttribute(int *v, int a, int d) { *v = a == 75 ? 9 : 0; return d; }
int cuDeviceTotalMem_v2(uint64_t *n, int d) { *n = 1ull << 34; return d; }
int cuDevicePrimaryCtxRetain(P *c, int d) { *c = 7; live++; return d; }
int cuDevicePrimaryCtxRelease_v2(int d) { live--; return d; }
static __thread int current;
int cuCtxSetCurrent(P c) { current = 1; return c != 7; }
#define CTX if (!current) return 201
int cuGetErrorName(int e, const char **s) { *s = e == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_STUB"; return 0; }
int cuModuleLoadDataEx(P *m, const char *ptx, unsigned n, int *o, void **v) {
  CTX;
  if (n != 2 || o[0] != 5 || o[1] != 6 || (uint64_t)v[1] != 4096) return 1;
  int rc = module_loaded(ptx, m);
  if (rc) strcpy(v[0], "stub: bad PTX");
  else live++;
  return rc ? 218 : 0;
}
int cuModuleUnload(P m) { CTX; live--; return 0; }
int cuModuleGetFunction(P *f, P m, const char *n) { CTX; *f = m; return strstr(n, "_cuda") ? 0 : 500; }
int cuFuncGetAttribute(int *v, int a, P f) { CTX; *v = 1024; return a; }
int cuMemAlloc_v2(P *p, uint64_t n) { CTX; if (n > 1ull << 32) return 2; live++; *p = (P)malloc(n); memset((void *)*p, 0xFF, n); return 0; }
int cuMemFree_v2(P p) { CTX; live--; free((void *)p); return 0; }
int cuMemHostAlloc(P *p, uint64_t n, unsigned f) { CTX; live++; *p = (P)malloc(n); return f != 3; }
int cuMemFreeHost(P p) { CTX; live--; free((void *)p); return 0; }
int cuMemHostGetDevicePointer_v2(P *d, P h, unsigned f) { CTX; *d = h; return f; }
int cuMemcpyHtoD_v2(P d, const void *s, uint64_t n) { CTX; memcpy((void *)d, s, n); return 0; }
int cuMemcpyDtoH_v2(void *d, P s, uint64_t n) { CTX; memcpy(d, (void *)s, n); return 0; }
int cuMemsetD8_v2(P d, uint8_t v, uint64_t n) { CTX; memset((void *)d, v, n); return 0; }
int cuStreamCreate(P *s, unsigned f) { CTX; live++; *s = (P)malloc(1); return f != 1; }
int cuStreamDestroy_v2(P s) { CTX; live--; free((void *)s); return 0; }
int cuStreamSynchronize(P s) { CTX; return 0; }
int cuStreamWaitEvent(P s, P e, unsigned f) { CTX; return f; }
int cuEventCreate(P *e, unsigned f) { CTX; live++; *e = (P)malloc(1); return f & ~2u; }
int cuEventDestroy_v2(P e) { CTX; live--; free((void *)e); return 0; }
int cuEventRecord(P e, P s) { CTX; return !e || !s; }
int cuEventSynchronize(P e) { CTX; return !e; }
int cuEventElapsedTime(float *ms, P a, P b) { CTX; *ms = 1.5f; return 0; }
int cuLaunchKernel(P f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned sh, P st, void **params, void **extra) {
  CTX;
  if (params || !st || (P)extra[0] != 1 || (P)extra[2] != 2 || extra[4]) return 1;
  P a[10] = {f, gx, gy, gz, bx, by, bz, sh, (P)extra[1], *(P *)extra[3]};
  return launch(a);
}
// Graphs: the launches in the order in which they were added.
struct params { P f; unsigned g[3], b[3], sh; void **params, **extra; };
struct node { P a[10]; char args[8192]; struct node *next; };
struct graph { struct node *first, *last; };
static int set_node(struct node *n, const struct params *k) {
  if (k->params || (P)k->extra[0] != 1 || (P)k->extra[2] != 2 || k->extra[4]) return 1;
  P size = *(P *)k->extra[3];
  if (size > sizeof n->args) return 1;
  memcpy(n->args, k->extra[1], size);
  P a[10] = {k->f, k->g[0], k->g[1], k->g[2], k->b[0], k->b[1], k->b[2], k->sh, (P)n->args, size};
  memcpy(n->a, a, sizeof a);
  return 0;
}
int cuGraphCreate(P *g, unsigned f) { CTX; live++; *g = (P)calloc(1, sizeof(struct graph)); return f; }
int cuGraphAddKernelNode(P *out, P graph, const P *deps, uint64_t ndeps, const struct params *k) {
  CTX;
  struct graph *g = (struct graph *)graph;
  if ((g->first == 0) != (ndeps == 0) && ndeps != 0) return 1;
  struct node *n = calloc(1, sizeof *n);
  if (set_node(n, k)) return 1;
  if (g->last) g->last->next = n; else g->first = n;
  g->last = n;
  *out = (P)n;
  return 0;
}
int cuGraphAddDependencies_v2(P graph, const P *from, const P *to, const uint8_t (*edge)[8], uint64_t n) {
  CTX;
  for (uint64_t i = 0; i < n; i++)
    if (!from[i] || to[i] != (P)((struct graph *)graph)->last || memcmp(edge[i], "\1\0\1\0\0\0\0", 8)) return 1;
  return 0;
}
int cuGraphInstantiateWithFlags(P *exec, P graph, uint64_t f) { CTX; live++; *exec = graph; return f != 0; }
int cuGraphExecKernelNodeSetParams(P exec, P node, const struct params *k) { CTX; graph_updates++; return set_node((struct node *)node, k); }
int cuGraphLaunch(P exec, P st) {
  CTX;
  if (!st) return 1;
  graph_launches++;
  for (struct node *n = ((struct graph *)exec)->first; n; n = n->next) {
    int rc = launch(n->a);
    if (rc) return rc;
  }
  return 0;
}
int cuGraphExecDestroy(P exec) { CTX; live--; return 0; }
int cuGraphDestroy(P graph) {
  CTX;
  live--;
  for (struct node *n = ((struct graph *)graph)->first, *next; n; n = next) { next = n->next; free(n); }
  free((void *)graph);
  return 0;
}
