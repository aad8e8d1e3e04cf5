//go:build linux && (amd64 || arm64) && !nogpu

package metal

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"unsafe"
)

// A graph is the launches of a command buffer as one object of the driver: one
// call for all of them, and less time between two that depend on each other. To
// make one takes longer than to launch, so it is made where the same kernels
// come in the same order for the second time, as they do token after token; what
// changes is told the driver before each launch.
type cudaGraph struct {
	shape []graphShape
	graph uintptr
	exec  uintptr // 0: seen once
	nodes []graphNode
}

// graphShape is what two command buffers must share to share a graph.
type graphShape struct {
	fn    uintptr
	after bool
}

// graphNode is one launch as the driver knows it.
type graphNode struct {
	node            uintptr
	groups, threads Size
	shared          int
	args            []byte
}

// Graphs are for command buffers of some launches; some are kept.
const (
	graphLaunches = 4
	maxGraphs     = 16
)

// kernelNode is CUDA_KERNEL_NODE_PARAMS of the driver's first version.
type kernelNode struct {
	fn            uintptr
	grid, block   [3]uint32
	shared        uint32
	params, extra unsafe.Pointer
}

func (c *cudaCommands) shape() []graphShape {
	s := c.q.shape[:0]
	for i := range c.dispatches {
		d := &c.dispatches[i]
		s = append(s, graphShape{d.pipeline.(*cudaPipeline).fn, d.after})
	}
	c.q.shape = s
	return s
}

// launchGraph launches the command buffer as a graph, or says that it has none.
func (c *cudaCommands) launchGraph() (bool, error) {
	q := c.q
	if len(c.dispatches) < graphLaunches {
		return false, nil
	}
	shape := c.shape()
	i := slices.IndexFunc(q.graphs, func(g *cudaGraph) bool { return slices.Equal(g.shape, shape) })
	if i < 0 {
		if len(q.graphs) == maxGraphs {
			if err := q.drop(q.graphs[0]); err != nil {
				return false, err
			}
			q.graphs = slices.Delete(q.graphs, 0, 1)
		}
		q.graphs = append(q.graphs, &cudaGraph{shape: slices.Clone(shape)})
		return false, nil
	}
	g := q.graphs[i]
	q.graphs = append(slices.Delete(q.graphs, i, i+1), g) // the last one used is last
	if g.exec == 0 {
		if err := c.buildGraph(g); err != nil {
			return false, err
		}
	} else if err := c.updateGraph(g); err != nil {
		return false, err
	}
	return true, q.d.call("cuGraphLaunch", g.exec, q.streams[0])
}

// params are the parameters of a launch for the driver; they hold until the next.
func (c *cudaCommands) params(l *dispatch) (*kernelNode, error) {
	p := l.pipeline.(*cudaPipeline)
	if err := c.pack(l, c.args[:p.size]); err != nil {
		return nil, fmt.Errorf("%v: %w", p, err)
	}
	c.size = uintptr(p.size)
	dims := func(s Size) [3]uint32 { return [3]uint32{uint32(s.X), uint32(s.Y), uint32(s.Z)} }
	c.node = kernelNode{fn: p.fn, grid: dims(l.groups), block: dims(l.threads), shared: uint32(l.sharedBytes), extra: unsafe.Pointer(&c.extra)}
	return &c.node, nil
}

func (c *cudaCommands) note(n *graphNode, l *dispatch) {
	n.groups, n.threads, n.shared = l.groups, l.threads, l.sharedBytes
	n.args = append(n.args[:0], c.args[:c.size]...)
}

// buildGraph makes the graph: every launch behind all those of the segment before.
func (c *cudaCommands) buildGraph(g *cudaGraph) error {
	d := c.q.d
	handle := new(uintptr)
	if err := d.call("cuGraphCreate", uintptr(unsafe.Pointer(handle)), 0); err != nil {
		return err
	}
	g.graph, g.nodes = *handle, make([]graphNode, len(c.dispatches))
	var before, now []uintptr
	for i := range c.dispatches {
		l := &c.dispatches[i]
		if l.after {
			before, now = now, nil
		}
		k, err := c.params(l)
		if err != nil {
			return err
		}
		if err := c.addNode(handle, g.graph, before, k); err != nil {
			return fmt.Errorf("%v: %w", l.pipeline, err)
		}
		g.nodes[i].node = *handle
		c.note(&g.nodes[i], l)
		now = append(now, *handle)
	}
	if err := d.call("cuGraphInstantiateWithFlags", uintptr(unsafe.Pointer(handle)), g.graph, 0); err != nil {
		return err
	}
	g.exec = *handle
	return nil
}

// graphEdge is CUgraphEdgeData.
type graphEdge struct {
	from, to, kind uint8
	_              [5]uint8
}

// addNode adds a launch behind others. With early launches the driver need only
// wait until all threadgroups of those have started: every kernel waits itself
// until they have finished, before it touches what they do, and so finishes after
// all that came before.
func (c *cudaCommands) addNode(node *uintptr, graph uintptr, before []uintptr, k *kernelNode) error {
	d := c.q.d
	if len(before) > 0 && !d.early {
		return d.call("cuGraphAddKernelNode", uintptr(unsafe.Pointer(node)), graph, uintptr(unsafe.Pointer(&before[0])), uintptr(len(before)), uintptr(unsafe.Pointer(k)))
	}
	if err := d.call("cuGraphAddKernelNode", uintptr(unsafe.Pointer(node)), graph, 0, 0, uintptr(unsafe.Pointer(k))); err != nil || len(before) == 0 {
		return err
	}
	to, edges := make([]uintptr, len(before)), make([]graphEdge, len(before))
	for i := range before {
		// CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC
		to[i], edges[i] = *node, graphEdge{from: 1, kind: 1}
	}
	return d.call(addDependencies, graph, uintptr(unsafe.Pointer(&before[0])), uintptr(unsafe.Pointer(&to[0])), uintptr(unsafe.Pointer(&edges[0])), uintptr(len(before)))
}

// updateGraph tells the driver what is not as in the last launch.
func (c *cudaCommands) updateGraph(g *cudaGraph) error {
	for i := range c.dispatches {
		l, n := &c.dispatches[i], &g.nodes[i]
		k, err := c.params(l)
		if err != nil {
			return err
		}
		if n.groups == l.groups && n.threads == l.threads && n.shared == l.sharedBytes && bytes.Equal(n.args, c.args[:c.size]) {
			continue
		}
		if err := c.q.d.call("cuGraphExecKernelNodeSetParams", g.exec, n.node, uintptr(unsafe.Pointer(k))); err != nil {
			return fmt.Errorf("%v: %w", l.pipeline, err)
		}
		c.note(n, l)
	}
	return nil
}

// drop gives a graph back, which must not be running.
func (q *cudaQueue) drop(g *cudaGraph) error {
	var errs []error
	if g.exec != 0 {
		errs = append(errs, q.d.call("cuStreamSynchronize", q.streams[0]), q.d.call("cuGraphExecDestroy", g.exec))
	}
	if g.graph != 0 {
		errs = append(errs, q.d.call("cuGraphDestroy", g.graph))
	}
	return errors.Join(errs...)
}
