"""Programs whose gain is predicted and measured.

Each is a command that does the same work each time, in 5 s or more, with its memory filled after `after` seconds of CPU time; `watch` is for how long it
is looked at then. Files that they work on are made in a folder.
"""

import pathlib
import random
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent

# MIB, ROUNDS in millions and the mixture.
MIXTURES = {
    "gather 1G": "1024 80 gather=1", "gather 256M": "256 120 gather=1", "gather 64M, work": "64 70 gather=1 work=20",
    "gather 1G, work": "1024 22 gather=1 work=50", "chase 1G": "1024 13 chase=1", "chase 128M": "128 23 chase=1",
    "chase 32M, work": "32 30 chase=1 work=50", "chase 512M, work": "512 10 chase=1 work=200", "scan 512M": "512 25 scan=1",
    "scan 512M, work": "512 22 scan=1 work=50", "scan 64M, work": "64 10 scan=1 work=300", "object 512M": "512 55 object=1",
    "object 512M, work": "512 11 object=2 work=100", "store 256M": "256 100 store=1", "skewed 3 1G": "1024 50 skewed=1 skew=3",
    "skewed 6 1G": "1024 45 skewed=1 skew=6", "skewed 3 256M, work": "256 27 skewed=1 skew=3 work=30",
    "hot 8M of 512M": "512 11 hotter=20 gather=1 hot=8", "hot 4M of 1G": "1024 7 hotter=50 gather=1 hot=4",
    "hot 24M, scan 256M": "256 18 hotter=5 scan=1 hot=24", "mixed 512M": "512 11 gather=2 chase=1 scan=1 work=50",
    "mixed 1G": "1024 12 chase=1 hotter=10 hot=2 work=20", "both 6M": "6 50 gather=1 chase=1", "both 16M": "16 40 chase=1 gather=2",
    "mostly work": "64 1 gather=1 work=3000",
}

PYTHON = shutil.which("python3") or "python3"


def mixture(folder):
    """The synthetic program, built once."""
    program = folder / "mixture"
    if not program.exists():
        subprocess.run(["cc", "-O2", "-o", program, HERE / "mixture.c"], check=True)
    return program


def training(folder):
    """Synthetic mixtures, and programs that the model was held against while it was made."""
    program = mixture(folder)
    for name, text in MIXTURES.items():
        mib, rounds, *rest = text.split()
        yield {"name": name, "command": f"{program} {mib} {rounds}000000 {' '.join(rest)}", "after": 0.5 + int(mib) / 1024, "watch": 2}
    yield from known(folder)
    yield from first(folder)
    yield from second(folder)


def write(path, text):
    """A file of a program."""
    path.write_text(text, encoding="utf-8")
    return path


def data(folder):
    """Some 200 MB of what is installed here, as a compressor would meet it."""
    path = folder / "data.tar"
    if not path.exists():
        subprocess.run("tar cf - /usr/lib/x86_64-linux-gnu /usr/share/perl /usr/include 2>/dev/null | head -c 200000000 > data.tar",
                       shell=True, cwd=folder, check=True)
    return path


def words(folder):
    """Five million lines of random words."""
    path = folder / "words"
    if not path.exists():
        subprocess.run([PYTHON, "-c", "import random; random.seed(1)\nwith open('words', 'w') as f:\n for _ in range(5000000):"
                        "\n  f.write('%x %x\\n' % (random.getrandbits(60), random.getrandbits(21)))"], cwd=folder, check=True)
    return path


def source(folder, functions):
    """A large file in C."""
    path = folder / f"large-{functions}.c"
    if not path.exists():
        parts = ["#include <stdio.h>\n#include <string.h>\n#include <stdlib.h>\n"]
        parts += [f"struct s{n} {{ int a, b; double d; struct s{n} *next; }};\n"
                  f"static int f{n}(struct s{n} *p, int k) {{ int sum = {n}; for (int i = 0; i < k; i++) {{ "
                  f"if (p && p->a % {n % 7 + 2} == i % 3) {{ sum += p->b * i; p = p->next; }} else switch ((sum + i) % 5) {{ "
                  f"case 0: sum ^= i << {n % 5}; break; case 1: sum += (int)strlen(\"x{n}\"); break; default: sum = sum * 31 + {n}; }} }} return sum; }}\n"
                  for n in range(functions)]
        parts.append("int main(int c, char **v) { int s = 0;\n")
        parts += [f"{{ struct s{n} x = {{ c, {n}, 1.0, 0 }}; s += f{n}(&x, c); }}\n" for n in range(functions)]
        parts.append("printf(\"%d\\n\", s); return 0; }\n")
        path.write_text("".join(parts), encoding="utf-8")
    return path


DICT = """
import random
random.seed(1)
d = {i * 2654435761 % (1 << 40): i for i in range(2_000_000)}
keys = list(d)
random.shuffle(keys)
s = 0
for _ in range(8):
    for k in keys: s += d[k]
print(s)
"""
GATHER = """
import numpy as np
a = np.arange(60_000_000, dtype=np.float64)
i = np.random.default_rng(1).integers(0, len(a), 8_000_000)
s = 0.0
for _ in range(60): s += a[i].sum()
print(s)
"""
MATMUL = """
import numpy as np
a = np.random.default_rng(1).random((3000, 3000)); b = a.T.copy()
for _ in range(8): c = a @ b
print(c[0, 0])
"""
SORT = """
import numpy as np
a = np.random.default_rng(1).random(8_000_000)
for _ in range(12): b = np.sort(a)
print(b[5])
"""
PERL = """
my %h; my $x = 1;
for my $i (1 .. 1500000) { $x = ($x * 1103515245 + 12345) % 2147483648; $h{$x} = $i }
my @k = keys %h; my $s = 0;
for my $r (1 .. 8) { for my $k (@k) { $s += $h{ $k } } }
print "$s\\n";
"""
AWK = """
BEGIN { x = 1
  for (i = 0; i < 700000; i++) { x = (x * 16807) % 2147483647; a[x] = i; k[i] = x }
  for (r = 0; r < 3; r++) for (i = 0; i < 700000; i++) s += a[k[(i * 7919) % 700000]]
  print s }
"""
LUA = """
local function tree(d) if d == 0 then return {} end return { tree(d - 1), tree(d - 1) } end
local function check(t) if t[1] then return 1 + check(t[1]) + check(t[2]) end return 1 end
local keep = tree(20)
local s = 0
for _ = 1, 70 do s = s + check(keep) end
print(s)
"""
NODE = """
const m = new Map(); let x = 1;
const keys = [];
for (let i = 0; i < 3000000; i++) { x = (x * 48271) % 2147483647; m.set(x, { v: i }); keys.push(x) }
let s = 0;
for (let r = 0; r < 10; r++) for (let i = 0; i < keys.length; i++) s += m.get(keys[(i * 7919) % keys.length]).v;
console.log(s);
"""
JAVA = """
import java.util.*;
public class Large {
  public static void main(String[] a) {
    HashMap<Integer, Integer> m = new HashMap<>(); Random r = new Random(1); int[] k = new int[4000000];
    for (int i = 0; i < k.length; i++) { k[i] = r.nextInt(); m.put(k[i], i); }
    long s = 0;
    for (int n = 0; n < 28; n++) for (int i = 0; i < k.length; i++) s += m.get(k[(int) ((i * 7919L) % k.length)]);
    System.out.println(s);
  }
}
"""
SQL = """
create table t(k integer primary key, v integer, w text);
with recursive c(i) as (select 1 union all select i + 1 from c where i < 1500000) insert into t select i, (i * 48271) % 1500007, hex(randomblob(20)) from c;
create index tv on t(v);
""" + "select sum(length(b.w)) from t a join t b on b.v = (a.k * 7919) % 1500007;\n" * 2


def part(folder, size):
    """The first bytes of what compressors work on."""
    path = folder / f"part-{size}.tar"
    if not path.exists():
        path.write_bytes(data(folder).read_bytes()[:size])
    return path


def known(folder):
    """Programs that the model was held against while it was made."""
    lines, half, quarter = words(folder), part(folder, 25_000_000), part(folder, 8_000_000)
    yield {"name": "python dict", "command": f"{PYTHON} {write(folder / 'dict.py', DICT)}", "after": 1.6, "watch": 4}
    yield {"name": "numpy gather", "command": f"{PYTHON} {write(folder / 'gather.py', GATHER)}", "after": 0.8, "watch": 4}
    yield {"name": "numpy matmul", "command": f"{PYTHON} {write(folder / 'matmul.py', MATMUL)}", "after": 0.8, "watch": 4}
    yield {"name": "numpy sort", "command": f"{PYTHON} {write(folder / 'sort.py', SORT)}", "after": 0.7, "watch": 4}
    yield {"name": "xz -6", "command": f"xz -6 -T1 -k -c {quarter} {quarter}", "after": 0.8, "watch": 4}
    yield {"name": "zstd -12 --long", "command": f"zstd -q -12 --long=27 --single-thread -c {half} {half} {half} {half}", "after": 0.8, "watch": 4}
    yield {"name": "gzip -9", "command": f"gzip -9 -c {half}", "after": 0.4, "watch": 4}
    yield {"name": "bzip2 -9", "command": f"bzip2 -9 -k -c {half} {half} {half}", "after": 0.4, "watch": 4}
    yield {"name": "sort", "command": f"sort --parallel=1 -S 2G {lines} {lines}", "after": 1.0, "watch": 4}
    yield {"name": "mawk arrays", "command": f"mawk -f {write(folder / 'arrays.awk', AWK)}", "after": 1.5, "watch": 4}


def clang_headers(clang):
    """Where clang keeps its own."""
    told = subprocess.run([clang, "-print-resource-dir"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{told}/include"


RUBY = """
h = {}; x = 1; keys = []
1_500_000.times { |i| x = (x * 48271) % 2147483647; h[x] = i; keys << x }
s = 0; n = keys.size
18.times { n.times { |i| s += h[keys[(i * 7919) % n]] } }
puts s
"""
PHP = """<?php
ini_set('memory_limit', '-1'); $h = []; $x = 1; $k = [];
for ($i = 0; $i < 3000000; $i++) { $x = ($x * 48271) % 2147483647; $h[$x] = $i; $k[] = $x; }
$s = 0; $n = count($k);
for ($r = 0; $r < 14; $r++) for ($i = 0; $i < $n; $i++) $s += $h[$k[($i * 7919) % $n]];
echo $s, "\\n";
"""
GRAPH = """
import numpy as np
from scipy.sparse import csr_matrix
r = np.random.default_rng(1); n = 2_000_000
m = csr_matrix((np.ones(12 * n), (r.integers(0, n, 12 * n), r.integers(0, n, 12 * n))), shape=(n, n))
v = np.ones(n)
for _ in range(80): v = m @ v; v /= v.max()
print(v[0])
"""
FFT = """
import numpy as np
a = np.random.default_rng(1).random(1 << 24)
for _ in range(24): b = np.fft.rfft(a)
print(b[1])
"""
SCHEME = """
(define (tree d) (if (= d 0) '() (cons (tree (- d 1)) (tree (- d 1)))))
(define (check t) (if (null? t) 1 (+ (check (car t)) (check (cdr t)))))
(define keep (tree 21))
(let loop ((i 0) (s 0)) (if (< i 15) (loop (+ i 1) (+ s (check keep))) (begin (display s) (newline))))
"""
LIFE = """
local ffi = require('ffi'); local n = 40000000
local a = ffi.new('int32_t[?]', n)
local x = 1
for i = 0, n - 1 do a[i] = (i * 7919) % n end
local p, s = 0, 0
for i = 1, 50000000 do p = a[p] ; s = s + p; p = (p + i * 31) % n end
print(s)
"""


SBCL = """
(let ((h (make-hash-table)) (keys (make-array 2000000)) (x 1) (s 0))
  (declare (fixnum x s))
  (dotimes (i 2000000) (setf x (mod (* x 48271) 2147483647)) (setf (gethash x h) i) (setf (aref keys i) x))
  (dotimes (r 32) (dotimes (i 2000000) (incf s (the fixnum (gethash (aref keys (mod (* i 7919) 2000000)) h)))))
  (print s))
"""
OCAML = """
module M = Map.Make (Int)
let () =
  let x = ref 1 and m = ref M.empty in
  let keys = Array.init 1000000 (fun _ -> x := !x * 48271 mod 2147483647; !x) in
  Array.iteri (fun i k -> m := M.add k i !m) keys;
  let s = ref 0 in
  for _ = 1 to 3 do for i = 0 to 999999 do s := !s + M.find keys.(i * 7919 mod 1000000) !m done done;
  print_int !s
"""
PRIMES = "n = 60000000; v = vectorsmall(n, i, 1); for(p = 2, sqrtint(n), if(v[p], forstep(i = p * p, n, p, v[i] = 0))); print(v[n])"


def genome(folder, millions=8):
    """Random bases."""
    path = folder / f"genome-{millions}.fa"
    if not path.exists():
        write(path, ">one\n" + "".join(random.Random(3).choices("ACGT", k=millions * 1_000_000)) + "\n")
    return path


def compiled(folder, name, text, *command):
    """A program made of `text` by a compiler, once; none where that is not there."""
    made = folder / name
    if shutil.which(command[0]) is None:
        return None
    if not made.exists():
        subprocess.run([*command, write(folder / text[0], text[1])], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return made


def first(folder):
    """Programs that an earlier model was validated with; this one is fitted to them, too."""
    large = source(folder, 700)
    java = compiled(folder, "Large.class", ("Large.java", JAVA), "javac")
    cc1 = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    clang = subprocess.run(["readlink", "-f", shutil.which("clang") or "clang"], capture_output=True, text=True, check=True).stdout.strip()
    commands = {
        "perl hash": (f"perl {write(folder / 'hash.pl', PERL)}", 1.8),
        "lua tree": (f"lua5.4 {write(folder / 'tree.lua', LUA)}", 0.8),
        "node Map": (f"node --max-old-space-size=4000 {write(folder / 'map.js', NODE)}", 1.5),
        "java HashMap": (java and f"java -XX:+UseSerialGC -Xmx2g -Xms2g -cp {folder} Large", 2.0),
        "cc1 -O2": (f"{cc1} -quiet -imultiarch x86_64-linux-gnu -O2 {large} -o {folder / 'cc1.s'}", 1.5),
        "clang -O2": (f"{clang} -cc1 -O2 -emit-obj -I/usr/include -I/usr/include/x86_64-linux-gnu -internal-isystem {clang_headers(clang)} "
                      f"{source(folder, 450)} -o {folder / 'clang.o'}", 1.5),
        "sqlite join": (f"sqlite3 :memory: < {write(folder / 'join.sql', SQL)}", 2.5),
        "ruby hash": (f"ruby {write(folder / 'hash.rb', RUBY)}", 1.5),
        "php array": (f"php {write(folder / 'array.php', PHP)}", 1),
        "scipy sparse": (f"{PYTHON} {write(folder / 'sparse.py', GRAPH)}", 4),
        "numpy fft": (f"{PYTHON} {write(folder / 'fft.py', FFT)}", 1),
        "guile tree": (f"guile --no-auto-compile -s {write(folder / 'tree.scm', SCHEME)}", 2),
        "luajit array": (f"luajit {write(folder / 'array.lua', LIFE)}", 1),
        "pypy dict": (f"pypy3 {write(folder / 'dict10.py', DICT.replace('range(8)', 'range(36)'))}", 2),
        "gawk arrays": (f"gawk -f {write(folder / 'gawk.awk', AWK.replace('r < 3', 'r < 12'))}", 1.5),
    }
    yield from there(commands)


def there(commands):
    """Those of the programs that are installed; who is not is told."""
    for name, (command, after) in commands.items():
        if command and shutil.which(str(command).split(maxsplit=1)[0]):
            yield {"name": name, "command": str(command), "after": after, "watch": 4}
        else:
            print(f"{name}: not there", file=sys.stderr)


GO = """
package main

import "fmt"

type node struct{ left, right *node }

func tree(depth int) *node {
	if depth == 0 {
		return &node{}
	}
	return &node{tree(depth - 1), tree(depth - 1)}
}

func check(n *node) int {
	if n.left == nil {
		return 1
	}
	return 1 + check(n.left) + check(n.right)
}

func main() {
	m, x, keys := map[int]int{}, 1, []int{}
	for i := 0; i < 2000000; i++ {
		x = x * 48271 % 2147483647
		m[x] = i
		keys = append(keys, x)
	}
	keep, s := tree(21), 0
	for r := 0; r < 45; r++ {
		for i := range keys {
			s += m[keys[i*7919%len(keys)]]
		}
		s += check(keep)
	}
	fmt.Println(s)
}
"""
PROLOG = """
:- initialization(main).
fill(0, A, A) :- !.
fill(N, A, B) :- K is (N * 48271) mod 2147483647, rb_insert(A, K, N, C), M is N - 1, fill(M, C, B).
look(0, _, S, S) :- !.
look(N, A, S, R) :- K is (((N * 7919) mod 300000 + 1) * 48271) mod 2147483647, (rb_lookup(K, V, A) -> T is S + V ; T = S), M is N - 1, look(M, A, T, R).
main :- rb_new(E), fill(300000, E, A), look(2500000, A, 0, S), print(S), nl, halt.
"""
PANDAS = """
import numpy as np, pandas as pd
r = np.random.default_rng(1)
f = pd.DataFrame({'k': r.integers(0, 300_000, 6_000_000), 'v': r.random(6_000_000)})
for _ in range(30): g = f.groupby('k')['v'].sum()
print(g.iloc[0])
"""
NEIGHBORS = """
import numpy as np
from scipy.spatial import cKDTree
r = np.random.default_rng(1)
t = cKDTree(r.random((2_000_000, 3)))
d, i = t.query(r.random((700_000, 3)), k=4)
print(d.sum())
"""
RANK = """
import igraph, random
random.seed(1)
g = igraph.Graph.Erdos_Renyi(n=600_000, m=6_000_000, directed=True)
for _ in range(6): p = g.pagerank()
print(max(p))
"""
OCTAVE = """
rand('seed', 1); n = 1200000; i = ceil(n * rand(8 * n, 1)); j = ceil(n * rand(8 * n, 1));
a = sparse(i, j, 1, n, n); v = ones(n, 1);
for k = 1:60, v = a * v; v /= max(v); end
disp(v(1))
"""
R = """
set.seed(1); k <- sample.int(1e6, 8e6, replace = TRUE); v <- runif(8e6)
for (n in 1:7) s <- sum(v[order(k, method = "radix")]) + sum(v[sample.int(8e6)])
print(s)
"""


def second(folder):
    """Programs that a later one was validated with, to which this one is fitted, too."""
    tar, lines = data(folder), words(folder)
    tree = compiled(folder, "tree", ("tree.ml", OCAML), "ocamlfind", "ocamlopt", "-O3", "-o", "tree") if shutil.which("ocamlfind") else \
        compiled(folder, "tree", ("tree.ml", OCAML), "ocamlopt", "-o", "tree")
    go = compiled(folder, "maps", ("maps.go", GO), "go", "build", "-o", "maps")
    yield from there({
        "ripgrep": (f"rg -j1 -a -c '[a-z]+[0-9]{{2}}[xyz]' " + f" {tar}" * 26, 0.3),
        "zstd -19": (f"zstd -q -19 --single-thread -c {part(folder, 30_000_000)}", 0.7),
        "sort -n": (f"sort --parallel=1 -S 2G -k2,2n {lines}", 1),
        "brotli -9": (f"brotli -q 9 -w 24 -c {part(folder, 30_000_000)}", 0.8),
        "7z lzma": (f"7z a none -mmt1 -mx5 -si -so -txz < {part(folder, 25_000_000)}", 1),
        "bwa index": (f"bwa index -p {folder / 'index'} {genome(folder)}", 2),
        "sbcl hash": (f"sbcl --dynamic-space-size 2GB --script {write(folder / 'hash.lisp', SBCL)}", 1.2),
        "ocaml map": (tree, 1.5),
        "gp sieve": (f"gp -q -s 2G {write(folder / 'primes.gp', PRIMES)} < /dev/null", 1),
        "go maps": (go and f"env GOMAXPROCS=1 {go}", 1.5),
        "stockfish": ("/usr/games/stockfish bench 512 1 16", 1),
        "swipl tree": (f"swipl -q {write(folder / 'tree.pl', PROLOG)}", 1.5),
        "pandas group": (f"{PYTHON} {write(folder / 'group.py', PANDAS)}", 1.2),
        "scipy k-d tree": (f"{PYTHON} {write(folder / 'neighbors.py', NEIGHBORS)}", 2.5),
        "igraph rank": (f"{PYTHON} {write(folder / 'rank.py', RANK)}", 3),
        "octave sparse": (f"octave-cli -q --no-init-file {write(folder / 'product.m', OCTAVE)}", 4),
        "R order": (f"Rscript {write(folder / 'order.R', R)}", 1.5),
        "imagemagick": ("convert -limit thread 1 -size 3500x3500 plasma:red-blue -rotate 30 -resize 60% -despeckle null:", 1),
    })

def sat(folder):
    """A random formula of three literals a clause, near to where such formulas stop to have a solution."""
    path = folder / "formula.cnf"
    if not path.exists():
        dice, variables, clauses = random.Random(5), 60_000, 250_000
        literals = ([dice.choice((-1, 1)) * v for v in dice.sample(range(1, variables + 1), 3)] for _ in range(clauses))
        write(path, f"p cnf {variables} {clauses}\n" + "".join(f"{a} {b} {c} 0\n" for a, b, c in literals))
    return path


def transport(folder, sites):
    """A linear program: goods from some places to others at the least cost."""
    path = folder / f"transport-{sites}.mod"
    if not path.exists():
        write(path, f"""param n := {sites};
set I := 1..n;
param c{{i in I, j in I}} := 1 + (i * 7919 + j * 104729 + i * j * 31) mod 997;
var x{{I, I}} >= 0;
minimize cost: sum{{i in I, j in I}} c[i, j] * x[i, j];
supply{{i in I}}: sum{{j in I}} x[i, j] <= 120;
demand{{j in I}}: sum{{i in I}} x[i, j] >= 80 + j mod 30;
solve;
end;
""")
    return path


def reads(folder, count):
    """Pieces of the genome, with an error in each hundred bases."""
    path = folder / f"reads-{count}.fa"
    if not path.exists():
        dice, bases = random.Random(7), genome(folder).read_text(encoding="utf-8").split("\n")[1]
        def piece():
            start = dice.randrange(len(bases) - 3000)
            text = list(bases[start:start + 3000])
            for place in dice.sample(range(3000), 30):
                text[place] = dice.choice("ACGT")
            return "".join(text)
        write(path, "".join(f">{n}\n{piece()}\n" for n in range(count)))
    return path


def records(folder, count):
    """Lines of JSON, CSV and XML that say the same."""
    made = [folder / f"records-{count}.{kind}" for kind in ("json", "csv", "xml")]
    if not all(path.exists() for path in made):
        dice = random.Random(9)
        rows = [(n, dice.randrange(200_000), dice.random(), "%x" % dice.getrandbits(48)) for n in range(count)]
        write(made[0], "".join(f'{{"id":{a},"key":{b},"value":{c:.6f},"name":"{d}"}}\n' for a, b, c, d in rows))
        write(made[1], "id,key,value,name\n" + "".join(f"{a},{b},{c:.6f},{d}\n" for a, b, c, d in rows))
        write(made[2], "<all>\n" + "".join(f'<one id="{a}"><key>{b}</key><value>{c:.6f}</value><name>{d}</name></one>\n'
                                          for a, b, c, d in rows) + "</all>\n")
    return made


def history(folder):
    """A repository in which files of some thousand lines were changed some thousand times."""
    path = folder / "history.git"
    if not path.exists():
        dice = random.Random(11)
        files = [[f"line {n} of {name} {dice.getrandbits(64):x}" for n in range(4000)] for name in range(12)]
        stream = []
        for change in range(1500):
            lines = files[change % 12]
            for _ in range(40):
                lines[dice.randrange(len(lines))] = f"changed {change} {dice.getrandbits(64):x}"
            text = "\n".join(lines) + "\n"
            stream.append(f"commit refs/heads/main\nmark :{change + 1}\ncommitter a <a@b> {1_600_000_000 + change} +0000\ndata 1\nx\n"
                          + (f"from :{change}\n" if change else "") + f"M 100644 inline file{change % 12}\ndata {len(text)}\n{text}\n")
        subprocess.run(["git", "init", "-q", "--bare", path], check=True)
        subprocess.run(["git", "-C", path, "fast-import", "--quiet"], input="".join(stream), text=True, check=True)
    return path


def rust(folder, functions):
    """A large file in Rust."""
    path = folder / f"large-{functions}.rs"
    if not path.exists():
        parts = [f"#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)] pub struct S{n} {{ a: u64, b: Vec<u32>, c: Option<String> }}\n"
                 f"pub fn f{n}(all: &[S{n}]) -> u64 {{ let mut m = std::collections::BTreeMap::new(); for s in all {{ *m.entry(s.a % {n + 3}).or_insert(0u64) "
                 f"+= s.b.iter().map(|b| u64::from(*b)).sum::<u64>() + s.c.as_ref().map_or({n}, |c| c.len() as u64); }} m.values().copied().max().unwrap_or(0) }}\n"
                 for n in range(functions)]
        parts.append("fn main() { let mut s = 0;\n")
        parts += [f"s += f{n}(&[S{n} {{ a: s, b: vec![1, 2], c: None }}, S{n} {{ a: 1, b: vec![], c: Some(String::new()) }}]);\n" for n in range(functions)]
        parts.append("println!(\"{s}\"); }\n")
        write(path, "".join(parts))
    return path


def adjacency(folder, nodes):
    """A graph for graphviz."""
    path = folder / f"graph-{nodes}.dot"
    if not path.exists():
        dice = random.Random(13)
        write(path, "graph g {\n" + "".join(f"{n} -- {dice.randrange(max(0, n - 400), n)};\n{n} -- {dice.randrange(n)};\n" for n in range(1, nodes)) + "}\n")
    return path


SMT = """
(set-logic QF_BV)
(declare-const a (_ BitVec 40)) (declare-const b (_ BitVec 40))
(assert (= (bvmul a b) #x1b38b1f9c5)) (assert (bvult a #x0000030000)) (assert (bvult b #x0000100000)) (assert (bvugt a #x0000000001)) (assert (bvugt b #x0000000001))
(check-sat)
"""
WORDS = """
#include <algorithm>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>
int main(int, char **file) {
  std::ifstream in(file[1]);
  std::unordered_map<std::string, int> seen;
  std::map<std::string, int> ordered;
  std::string word;
  for (long n = 0; n < 6000000 && in >> word; n++) { seen[word]++; if (n % 8 == 0) ordered[word]++; }
  std::vector<std::pair<int, std::string>> often;
  for (auto &[text, count] : seen) often.emplace_back(count, text);
  std::sort(often.rbegin(), often.rend());
  std::cout << often[0].second << ' ' << often[0].first << ' ' << ordered.size() << '\\n';
}
"""
PATHS = """
import networkx as nx
g = nx.gnm_random_graph(60_000, 300_000, seed=1)
print(sum(len(nx.single_source_shortest_path_length(g, s)) for s in range(0, 60_000, 850)))
"""
ERLANG = """
T = ets:new(t, [ordered_set]), F = fun(N) -> N * 48271 rem 2147483647 end,
[ets:insert(T, {F(N), N, [N]}) || N <- lists:seq(1, 1000000)],
S = lists:foldl(fun(N, A) -> [{_, V, _}] = ets:lookup(T, F(N * 7919 rem 1000000 + 1)), A + V end, 0, lists:seq(1, 1000000)),
io:format(\"~p~n\", [S]), halt().
"""
QUACK = """
import duckdb
c = duckdb.connect(config={'threads': 1})
c.execute("create table a as select i id, (i * 48271) % 3000017 k, hash(i) % 1000 v from range(6000000) t(i)")
c.execute("create table b as select (i * 7919) % 3000017 k, i % 777 w from range(3000000) t(i)")
for _ in range(18): r = c.execute("select w, count(*), sum(v) from a join b using (k) group by w order by 2 desc, 1 limit 3").fetchall()
print(r)
"""
FRAMES = """
import polars as pl
n = 6_000_000
f = pl.DataFrame({'k': pl.int_range(n, eager=True) * 48271 % 2_000_003, 'v': pl.int_range(n, eager=True) % 1009})
g = pl.DataFrame({'k': pl.int_range(2_000_000, eager=True) * 7919 % 2_000_003, 'w': pl.int_range(2_000_000, eager=True)})
for _ in range(5): r = f.join(g, on='k').group_by('k').agg(pl.col('v').sum(), pl.col('w').max()).sort('v').tail(2)
print(r)
"""
BOOSTED = """
import lightgbm as lgb, numpy as np
r = np.random.default_rng(1)
x = r.random((400_000, 40)); y = (x[:, 0] * x[:, 1] + np.sin(6 * x[:, 2]) + r.random(400_000) > 1.2).astype(int)
m = lgb.train({'objective': 'binary', 'num_leaves': 255, 'num_threads': 1, 'verbose': -1}, lgb.Dataset(x, y), 60)
print(m.predict(x[:5]))
"""
SCENE = """
camera { location <0, 6, -14> look_at <0, 0, 0> }
light_source { <20, 30, -20> rgb 1 }
plane { y, -2 pigment { checker rgb 1 rgb 0.5 } finish { reflection 0.2 } }
#declare S = seed(3);
#declare N = 0;
#while (N < 4000)
sphere { <rand(S) * 16 - 8, rand(S) * 6 - 2, rand(S) * 16 - 8>, 0.05 + rand(S) * 0.2 pigment { rgb <rand(S), rand(S), rand(S)> } finish { reflection 0.3 phong 1 } }
#declare N = N + 1;
#end
"""
VERILOG = """
module top(input clk, input [WIDTH-1:0] a, b, c, output reg [2*WIDTH-1:0] p, q, output reg [WIDTH-1:0] r);
parameter WIDTH = 20;
integer i;
reg [WIDTH-1:0] memory [0:63];
always @(posedge clk) begin
  p <= a * b + c; q <= (a ^ c) * (b + c) - p; memory[a[5:0]] <= p[WIDTH-1:0] ^ q[WIDTH-1:0];
  r <= memory[b[5:0]] / (c | 1);
end
endmodule
"""


def rustc():
    """The compiler itself; what is in the PATH may only choose one."""
    if shutil.which("rustc") is None:
        return "rustc"
    told = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{told}/bin/rustc"


def validation(folder):
    """Programs of Debian and PyPI that nobody looked at while the model was made."""
    lines = words(folder)
    json_file, csv, xml = records(folder, 800_000)
    count = compiled(folder, "count", ("count.cpp", WORDS), "g++", "-O2", "-std=c++17", "-o", "count")
    erlang = " ".join(ERLANG.split("\n")).strip()
    yield from there({
        "z3": (f"z3 {write(folder / 'factors.smt2', SMT)}", 1),
        "cadical": (f"cadical -q -c 11000 {sat(folder)}", 1.5),
        "glpsol": (f"glpsol --tmlim 100 -m {transport(folder, 480)}", 3),
        "minimap2": (f"minimap2 -t1 -x map-ont {genome(folder)} {reads(folder, 36000)}", 2),
        "bowtie2-build": (f"bowtie2-build-s --threads 1 -q {genome(folder, 12)} {folder / 'bowtie'}", 2),
        "jq group": (f"jq -s 'group_by(.key) | map({{k: .[0].key, s: (map(.value) | add)}}) | max_by(.s)' {json_file}", 2),
        "xmllint": (f"xmllint --xpath 'sum(//one[key mod 7 = 3]/value)' {xml} {xml} {xml} {xml} {xml} {xml}", 2),
        "git pack-objects": (f"git -C {history(folder)} -c pack.threads=1 pack-objects --all --no-reuse-object -q --stdout --depth=50 --window=40", 1),
        "c++ words": (count and f"{count} {lines}", 2),
        "rustc -O": (f"{rustc()} -O -C codegen-units=1 --emit=obj -o {folder / 'large.o'} {rust(folder, 260)}", 1.5),
        "networkx": (f"{PYTHON} {write(folder / 'paths.py', PATHS)}", 2.5),
        "erlang ets": (f"erl +S 1:1 -noshell -eval '{erlang}'", 2),
        "lzip -9": (f"lzip -9 -c {part(folder, 17_000_000)}", 1),
        "duckdb": (f"{PYTHON} {write(folder / 'quack.py', QUACK)}", 2),
        "polars": (f"env POLARS_MAX_THREADS=1 {PYTHON} {write(folder / 'frames.py', FRAMES)}", 2),
        "lightgbm": (f"{PYTHON} {write(folder / 'boosted.py', BOOSTED)}", 2),
        "povray": (f"povray -D +WT1 +W800 +H500 +A0.3 -O/dev/null +FN {write(folder / 'scene.pov', SCENE)}", 1),
        "x264": ("ffmpeg -v quiet -nostdin -f lavfi -i testsrc2=size=1280x720:rate=25:duration=12 -c:v libx264 -threads 1 -preset slow -f null -", 1),
        "yosys": (f"yosys -q -p 'read_verilog {write(folder / 'top.v', VERILOG)}; synth -top top; abc -g AND,XOR'", 2),
        "sfdp": (f"sfdp -o /dev/null {adjacency(folder, 15000)}", 1),
        "mlr": (f"env GOMAXPROCS=1 mlr --icsv --ojson sort -nr value then count-similar -g key then tail {csv}", 2),
    })



def of(what, folder):
    """The programs of a set that are there."""
    return {"training": training, "validation": validation}[what](folder)


if __name__ == "__main__":
    # For other callers: the text of a program (subjects.py JAVA), with less work if wanted (subjects.py JAVA 'n < 28' 'n < 9'),
    # or a file that programs work on (subjects.py part FOLDER SIZE).
    what, *more = sys.argv[1:]
    made = globals()[what]
    if not isinstance(made, str):
        print(made(pathlib.Path(more[0]), *map(int, more[1:])))
    elif not more:
        print(made)
    elif made.count(more[0]) == 1:
        print(made.replace(*more))
    else:
        sys.exit(f"{what} does not say {more[0]!r} once")
