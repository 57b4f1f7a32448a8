# Lookups in a large Hash.
$stdout.sync = true
table, keys, x = {}, [], 1
1_500_000.times { |i| x = (x * 48271) % 2147483647; table[x] = i; keys << x }
sum, i = 0, 0
loop do
  100_000.times { i += 1; sum += table[keys[(i * 7919) % keys.size]] }
  puts "+"
end
