// Package metal runs models on GPUs: kernels in Metal Shading Language behind
// a small driver interface with three drivers (Metal, CUDA, an emulator), and
// the backend that uses them.
package metal
