# What the programs of scripts/record.toml need, each made once below target/record:
#
#     make -s -f scripts/record.d/inputs.mk target/record/Large.class
#
# Texts of programs and most files are those of scripts/advise.d/subjects.py.

out := target/record
subjects := /usr/bin/python3 scripts/advise.d/subjects.py
# Whole or not there.
define into
@mkdir -p $(out)
$(1) >$@.part
mv $@.part $@
endef

# With fewer passes than there, so that each takes some five seconds.
$(out)/Large.java: ; $(call into,$(subjects) JAVA 'n < 28' 'n < 6')
$(out)/map.js: ; $(call into,$(subjects) NODE 'r < 10' 'r < 3')
$(out)/hash.rb: ; $(call into,$(subjects) RUBY '18.times' '6.times')
$(out)/array.php: ; $(call into,$(subjects) PHP 'r < 14' 'r < 5')
$(out)/hash.pl: ; $(call into,$(subjects) PERL '1 .. 8' '1 .. 2')
$(out)/tree.lua: ; $(call into,$(subjects) LUA '70 do' '32 do')
$(out)/hash.lisp: ; $(call into,$(subjects) SBCL 'r 32' 'r 8')
$(out)/fft.py: ; $(call into,$(subjects) FFT 'range(24)' 'range(6)')
$(out)/sort.py: ; $(call into,$(subjects) SORT 'range(12)' 'range(5)')
$(out)/sparse.py: ; $(call into,$(subjects) GRAPH 'range(80)' 'range(12)')
$(out)/lines: ; $(call into,/usr/bin/python3 demo/generate.py lines --size 170)
$(out)/keys: ; $(call into,/usr/bin/python3 demo/generate.py keys --keys 1000)

$(out)/Large.class: $(out)/Large.java
	javac -d $(out) $<

# The same with a third of the passes.
$(out)/short/Large.class: $(out)/Large.java
	@mkdir -p $(out)/short
	sed 's/n < 6/n < 2/' $< >$(out)/short/Large.java
	javac -d $(out)/short $(out)/short/Large.java

# The same for others, for scripts/default.toml.
$(out)/short/map.js: ; @mkdir -p $(@D) && $(subjects) NODE 'r < 10' 'r < 1' >$@.part && mv $@.part $@
$(out)/short/hash.rb: ; @mkdir -p $(@D) && $(subjects) RUBY '18.times' '2.times' >$@.part && mv $@.part $@
$(out)/short/tree.lua: ; @mkdir -p $(@D) && $(subjects) LUA '70 do' '12 do' >$@.part && mv $@.part $@

$(out)/tree: scripts/record.d/tree.go
	@mkdir -p $(out)
	GOCACHE=$(abspath $(out))/go-cache go build -o $@ $<

$(out)/large-%.c:
	@mkdir -p $(out)
	$(subjects) source $(out) $* >/dev/null

$(out)/part-%.tar:
	@mkdir -p $(out)
	$(subjects) part $(out) $* >/dev/null

$(out)/genome-%.fa:
	@mkdir -p $(out)
	$(subjects) genome $(out) $* >/dev/null
