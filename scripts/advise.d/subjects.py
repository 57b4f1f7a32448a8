"""Programs whose gain is predicted and measured.

Each is a command that does the same work each time, in some seconds, with its memory filled after `after` seconds of CPU time; `watch` is for how long it
is looked at then. Files that they work on are made in a folder.
"""

import pathlib
import shutil
import subprocess

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


def training(folder):
    """Synthetic mixtures."""
    program = folder / "mixture"
    subprocess.run(["cc", "-O2", "-o", program, HERE / "mixture.c"], check=True)
    for name, text in MIXTURES.items():
        mib, rounds, *rest = text.split()
        yield {"name": name, "command": f"{program} {mib} {rounds}000000 {' '.join(rest)}", "after": 1 + int(mib) / 1024, "watch": 3}


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
for _ in range(2):
    for k in keys: s += d[k]
print(s)
"""
GATHER = """
import numpy as np
a = np.arange(60_000_000, dtype=np.float64)
i = np.random.default_rng(1).integers(0, len(a), 20_000_000)
s = 0.0
for _ in range(9): s += a[i].sum()
print(s)
"""
MATMUL = """
import numpy as np
a = np.random.default_rng(1).random((3000, 3000)); b = a.T.copy()
for _ in range(3): c = a @ b
print(c[0, 0])
"""
SORT = """
import numpy as np
a = np.random.default_rng(1).random(20_000_000)
for _ in range(2): b = np.sort(a)
print(b[5])
"""
PERL = """
my %h; my $x = 1;
for my $i (1 .. 1500000) { $x = ($x * 1103515245 + 12345) % 2147483648; $h{$x} = $i }
my @k = keys %h; my $s = 0;
for my $r (1 .. 3) { for my $k (@k) { $s += $h{ $k } } }
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
for (let r = 0; r < 5; r++) for (let i = 0; i < keys.length; i++) s += m.get(keys[(i * 7919) % keys.length]).v;
console.log(s);
"""
JAVA = """
import java.util.*;
public class Large {
  public static void main(String[] a) {
    HashMap<Integer, Integer> m = new HashMap<>(); Random r = new Random(1); int[] k = new int[4000000];
    for (int i = 0; i < k.length; i++) { k[i] = r.nextInt(); m.put(k[i], i); }
    long s = 0;
    for (int n = 0; n < 8; n++) for (int i = 0; i < k.length; i++) s += m.get(k[(int) ((i * 7919L) % k.length)]);
    System.out.println(s);
  }
}
"""
SQL = """
create table t(k integer primary key, v integer, w text);
with recursive c(i) as (select 1 union all select i + 1 from c where i < 1500000) insert into t select i, (i * 48271) % 1500007, hex(randomblob(20)) from c;
create index tv on t(v);
""" + "select sum(length(b.w)) from t a join t b on b.v = (a.k * 7919) % 1500007;\n" * 2


def validation(folder):
    """Sixteen programs of Debian, PyPI and toolchains."""
    tar, lines, large = data(folder), words(folder), source(folder, 2500)
    java = folder / "Large.class"
    if not java.exists() and shutil.which("javac"):
        write(folder / "Large.java", JAVA)
        subprocess.run(["javac", "Large.java"], cwd=folder, check=False)
    half = folder / "half.tar"
    if not half.exists():
        subprocess.run(f"head -c 25000000 {tar} > half.tar; head -c 8000000 {tar} > quarter.tar", shell=True, cwd=folder, check=True)
    yield {"name": "python dict", "command": f"{PYTHON} {write(folder / 'dict.py', DICT)}", "after": 1.6, "watch": 3}
    yield {"name": "numpy gather", "command": f"{PYTHON} {write(folder / 'gather.py', GATHER)}", "after": 0.8, "watch": 3}
    yield {"name": "numpy matmul", "command": f"{PYTHON} {write(folder / 'matmul.py', MATMUL)}", "after": 0.8, "watch": 3}
    yield {"name": "numpy sort", "command": f"{PYTHON} {write(folder / 'sort.py', SORT)}", "after": 0.7, "watch": 3}
    yield {"name": "xz -6", "command": f"xz -6 -T1 -k -c {folder / 'quarter.tar'}", "after": 0.8, "watch": 3}
    yield {"name": "zstd -12 --long", "command": f"zstd -q -12 --long=27 --single-thread -c {half}", "after": 0.8, "watch": 3}
    yield {"name": "gzip -9", "command": f"gzip -9 -c {half}", "after": 0.4, "watch": 3}
    yield {"name": "bzip2 -9", "command": f"bzip2 -9 -k -c {half}", "after": 0.4, "watch": 3}
    yield {"name": "sort", "command": f"sort --parallel=1 -S 2G {lines}", "after": 1.0, "watch": 3}
    yield {"name": "mawk arrays", "command": f"mawk -f {write(folder / 'arrays.awk', AWK)}", "after": 1.5, "watch": 3}
    yield {"name": "perl hash", "command": f"perl {write(folder / 'hash.pl', PERL)}", "after": 1.8, "watch": 3}
    yield {"name": "lua tree", "command": f"lua5.4 {write(folder / 'tree.lua', LUA)}", "after": 0.8, "watch": 3}
    yield {"name": "node Map", "command": f"node --max-old-space-size=4000 {write(folder / 'map.js', NODE)}", "after": 1.5, "watch": 3}
    if java.exists():
        yield {"name": "java HashMap", "command": f"java -XX:+UseSerialGC -Xmx2g -Xms2g -cp {folder} Large", "after": 2.0, "watch": 3}
    cc1 = subprocess.run(["gcc", "-print-prog-name=cc1"], capture_output=True, text=True, check=True).stdout.strip()
    yield {"name": "cc1 -O2", "command": f"{cc1} -quiet -imultiarch x86_64-linux-gnu -O2 {large} -o {folder / 'cc1.s'}", "after": 1.5, "watch": 3}
    clang = subprocess.run(["readlink", "-f", shutil.which("clang") or "clang"], capture_output=True, text=True, check=True).stdout.strip()
    yield {"name": "clang -O2", "command": f"{clang} -cc1 -O2 -emit-obj -I/usr/include -I/usr/include/x86_64-linux-gnu "
           f"-internal-isystem {clang_headers(clang)} {source(folder, 1500)} -o {folder / 'clang.o'}", "after": 1.5, "watch": 3}
    yield {"name": "sqlite join", "command": f"sqlite3 :memory: < {write(folder / 'join.sql', SQL)}", "after": 2.5, "watch": 3}


def clang_headers(clang):
    """Where clang keeps its own."""
    told = subprocess.run([clang, "-print-resource-dir"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{told}/include"


RUBY = """
h = {}; x = 1; keys = []
1_500_000.times { |i| x = (x * 48271) % 2147483647; h[x] = i; keys << x }
s = 0; n = keys.size
7.times { n.times { |i| s += h[keys[(i * 7919) % n]] } }
puts s
"""
PHP = """<?php
ini_set('memory_limit', '-1'); $h = []; $x = 1; $k = [];
for ($i = 0; $i < 3000000; $i++) { $x = ($x * 48271) % 2147483647; $h[$x] = $i; $k[] = $x; }
$s = 0; $n = count($k);
for ($r = 0; $r < 15; $r++) for ($i = 0; $i < $n; $i++) $s += $h[$k[($i * 7919) % $n]];
echo $s, "\\n";
"""
GRAPH = """
import numpy as np
from scipy.sparse import csr_matrix
r = np.random.default_rng(1); n = 2_000_000
m = csr_matrix((np.ones(12 * n), (r.integers(0, n, 12 * n), r.integers(0, n, 12 * n))), shape=(n, n))
v = np.ones(n)
for _ in range(25): v = m @ v; v /= v.max()
print(v[0])
"""
FFT = """
import numpy as np
a = np.random.default_rng(1).random(1 << 24)
for _ in range(7): b = np.fft.rfft(a)
print(b[1])
"""
SCHEME = """
(define (tree d) (if (= d 0) '() (cons (tree (- d 1)) (tree (- d 1)))))
(define (check t) (if (null? t) 1 (+ (check (car t)) (check (cdr t)))))
(define keep (tree 21))
(let loop ((i 0) (s 0)) (if (< i 40) (loop (+ i 1) (+ s (check keep))) (begin (display s) (newline))))
"""
LIFE = """
local ffi = require('ffi'); local n = 40000000
local a = ffi.new('int32_t[?]', n)
local x = 1
for i = 0, n - 1 do a[i] = (i * 7919) % n end
local p, s = 0, 0
for i = 1, 40000000 do p = a[p] ; s = s + p; p = (p + i * 31) % n end
print(s)
"""


def fresh(folder):
    """Others."""
    tar, lines = data(folder), words(folder)
    yield {"name": "ruby hash", "command": f"ruby {write(folder / 'hash.rb', RUBY)}", "after": 3, "watch": 3}
    yield {"name": "php array", "command": f"php {write(folder / 'array.php', PHP)}", "after": 2, "watch": 3}
    yield {"name": "scipy sparse", "command": f"{PYTHON} {write(folder / 'sparse.py', GRAPH)}", "after": 7, "watch": 3}
    yield {"name": "numpy fft", "command": f"{PYTHON} {write(folder / 'fft.py', FFT)}", "after": 2, "watch": 3}
    yield {"name": "guile tree", "command": f"guile --no-auto-compile -s {write(folder / 'tree.scm', SCHEME)}", "after": 3, "watch": 3}
    yield {"name": "luajit array", "command": f"luajit {write(folder / 'array.lua', LIFE)}", "after": 2, "watch": 3}
    yield {"name": "pypy dict", "command": f"pypy3 {write(folder / 'dict.py', DICT.replace('range(2)', 'range(10)'))}", "after": 3, "watch": 3}
    yield {"name": "gawk arrays", "command": f"gawk -f {write(folder / 'arrays.awk', AWK)}", "after": 3, "watch": 3}
    yield {"name": "ripgrep", "command": f"rg -j1 -a -c '[a-z]+[0-9]{{3}}x(y|z)q' {tar} {tar} {tar} {tar}", "after": 0.7, "watch": 1.5}
    yield {"name": "zstd -19", "command": f"zstd -q -19 --single-thread -c {folder / 'quarter.tar'}", "after": 2, "watch": 3}
    yield {"name": "sort -n", "command": f"sort --parallel=1 -S 2G -k2,2n {lines}", "after": 2, "watch": 3}


def of(what, folder):
    """The programs of a set that are there."""
    return {"training": training, "validation": validation, "fresh": fresh}[what](folder)
