# Lookups in a large hash: hash.pl PASSES. A line after the filling, and after each pass.
$| = 1;
my %h; my $x = 1;
for my $i (1 .. 1500000) { $x = ($x * 1103515245 + 12345) % 2147483648; $h{$x} = $i }
my @k = keys %h; my $s = 0; my $n = @k;
print "filled\n";
for my $pass (1 .. $ARGV[0]) {
    for my $i (1 .. 500000) { $s += $h{ $k[($pass * 500000 + $i) * 7919 % $n] } }
    print "$s\n";
}
