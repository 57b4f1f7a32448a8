// Replaces random subtrees of a binary tree and checks sums over it: small objects and pointers, garbage
// all the time.
//
//	objects SECONDS
//
// Prints "done N" for every N subtrees replaced. Exit status 1 as soon as a sum is wrong.
package main

import (
	"fmt"
	"math/rand"
	"os"
	"strconv"
	"time"
)

const (
	// Depth of the tree, and of what is replaced.
	depth    = 21
	replaced = 9
	round    = 2000
)

type node struct {
	left, right *node
	value       uint64
}

// grow makes a subtree whose values sum up to what it returns.
func grow(levels int, random *rand.Rand) (*node, uint64) {
	if levels == 0 {
		return nil, 0
	}
	grown := &node{value: random.Uint64()}
	sum := grown.value
	var below uint64
	grown.left, below = grow(levels-1, random)
	sum += below
	grown.right, below = grow(levels-1, random)
	return grown, sum + below
}

func (n *node) sum() uint64 {
	if n == nil {
		return 0
	}
	return n.value + n.left.sum() + n.right.sum()
}

func fail(format string, words ...any) {
	fmt.Fprintf(os.Stderr, "objects: "+format+"\n", words...)
	os.Exit(1)
}

func main() {
	if len(os.Args) != 2 {
		fail("usage: objects SECONDS")
	}
	seconds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		fail("%v", err)
	}
	end := time.Now().Add(time.Duration(seconds) * time.Second)
	random := rand.New(rand.NewSource(1))
	tree, expected := grow(depth, random)
	for time.Now().Before(end) {
		for i := 0; i < round; i++ {
			place := &tree
			for level := depth; level > replaced; level-- {
				if random.Intn(2) == 0 {
					place = &(*place).left
				} else {
					place = &(*place).right
				}
			}
			old := (*place).sum()
			grown, sum := grow(replaced, random)
			*place = grown
			expected += sum - old
		}
		if found := tree.sum(); found != expected {
			fail("the tree sums up to %d, not %d", found, expected)
		}
		fmt.Printf("done %d\n", round)
	}
}
