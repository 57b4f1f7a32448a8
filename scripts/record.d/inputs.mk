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

$(out)/Large.java: ; $(call into,$(subjects) JAVA)
$(out)/map.js: ; $(call into,$(subjects) NODE)
$(out)/hash.rb: ; $(call into,$(subjects) RUBY)
$(out)/array.php: ; $(call into,$(subjects) PHP)
$(out)/hash.pl: ; $(call into,$(subjects) PERL)
$(out)/tree.lua: ; $(call into,$(subjects) LUA)
$(out)/hash.lisp: ; $(call into,$(subjects) SBCL)
$(out)/fft.py: ; $(call into,$(subjects) FFT)
$(out)/sort.py: ; $(call into,$(subjects) SORT)
$(out)/sparse.py: ; $(call into,$(subjects) GRAPH)
$(out)/lines: ; $(call into,/usr/bin/python3 demo/generate.py lines)
$(out)/keys: ; $(call into,/usr/bin/python3 demo/generate.py keys)

$(out)/Large.class: $(out)/Large.java
	javac -d $(out) $<

$(out)/tree: scripts/record.d/tree.go
	@mkdir -p $(out)
	GOCACHE=$(abspath $(out))/go-cache go build -o $@ $<

$(out)/large-%.c:
	@mkdir -p $(out)
	$(subjects) source $(out) $* >/dev/null

$(out)/part-%.tar:
	@mkdir -p $(out)
	$(subjects) part $(out) $* >/dev/null

$(out)/genome.fa:
	@mkdir -p $(out)
	$(subjects) genome $(out) >/dev/null
