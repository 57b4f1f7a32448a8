// Lookups in a large map and in a binary tree of pointers, which the garbage collector marks again and again.
package main

import "fmt"

type node struct {
	left, right *node
	key         int
}

func (n *node) insert(key int) *node {
	if n == nil {
		return &node{key: key}
	}
	if key < n.key {
		n.left = n.left.insert(key)
	} else {
		n.right = n.right.insert(key)
	}
	return n
}

func (n *node) depth(key int) int {
	steps := 0
	for n != nil && n.key != key {
		if key < n.key {
			n = n.left
		} else {
			n = n.right
		}
		steps++
	}
	return steps
}

func main() {
	const count = 1_000_000
	var root *node
	table := make(map[int]int)
	keys := make([]int, count)
	x := 1
	for i := range keys {
		x = x * 48271 % 2147483647
		keys[i] = x
		table[x] = i
		root = root.insert(x)
	}
	sum := 0
	for round := 0; round < 2; round++ {
		for i := range keys {
			key := keys[i*7919%count]
			sum += table[key] + root.depth(key)
			if i%1000 == 0 {
				sum += len(make([]int, 1000))
			}
		}
	}
	fmt.Println(sum)
}
