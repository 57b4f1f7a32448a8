// Lookups in a large map.
package main

import "fmt"

func main() {
	const count = 4_000_000
	table, keys, x := make(map[int]int), make([]int, count), 1
	for i := range keys {
		x = x * 48271 % 2147483647
		table[x], keys[i] = i, x
	}
	sum := 0
	for i := 1; ; i++ {
		sum += table[keys[i*7919%count]]
		if i%200_000 == 0 {
			fmt.Println("+")
		}
	}
}
