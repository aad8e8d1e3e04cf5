// Package guard gives tests of assembly memory that ends where none is mapped.
package guard

// T is what it needs of a test.
type T interface {
	Cleanup(func())
	Error(...any)
	Fatal(...any)
}
