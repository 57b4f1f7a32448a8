# Lookups in a large hash.
use strict;
$| = 1;
my (%table, @keys);
my $x = 1;
for my $i (1 .. 1500000) { $x = ($x * 48271) % 2147483647; $table{$x} = $i; push @keys, $x }
my ($sum, $i) = (0, 0);
while (1) {
  for (1 .. 50000) { $sum += $table{$keys[(++$i * 7919) % @keys]} }
  print "+\n";
}
