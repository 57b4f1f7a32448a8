# SPDX-License-Identifier: GPL-2.0-only
#
# Counts the results in what kernel/test's machine said, of two files: the kernel's log, with those of
# KUnit, and what the programs said. Prints what failed, and "PASSED FAILED SKIPPED" at the end.
#
# Variables: kunit, whether there must be tests of KUnit; programs, how many must have been run;
# ended, why the machine did, unless by itself.

function fail(what) {
    failed++
    print "FAILED " what
}

# A line of TAP that begins with ok or not ok.
function result(line, where) {
    if (toupper(line) ~ /# (SKIP|XFAIL|TODO)/) {
        skipped++
        here["skipped"]++
        print "SKIPPED " where ": " line
    } else if (line ~ /^ok/) {
        passed++
        here["passed"]++
    } else {
        fail(where ": " line)
        here["failed"]++
    }
}

{ sub(/\r$/, "") }

# The kernel's log: of KUnit's lines those that are indented once are cases; what is indented more are
# their parameters, what is not are whole suites.
FILENAME == ARGV[1] {
    sub(/^\[ *[0-9]+\.[0-9]+\] /, "")
    if (/^    # Subtest: /)
        suite = $3
    if (/^    (not )?ok [0-9]+ / && suite) {
        sub(/^ +/, "")
        result($0, "KUnit " suite)
        cases++
    }
    next
}

/^@test begin / {
    test = $3
    seconds = $4
    planned = 0
    delete here
    next
}
/^@test end / {
    status = $4
    tests += test != "lists"
    count = here["passed"] + here["failed"] + here["skipped"]
    if (status == 4) {
        if (!count) {
            skipped++
            print "SKIPPED " test
        }
    } else if (status >= 124 && !here["failed"])
        fail(test ": ended with status " status (status ~ /^(124|137|143)$/ ? ", perhaps after its " \
            seconds " seconds" : ""))
    else if (status != 0 && !here["failed"])
        fail(test ": ended with status " status)
    else if (status == 0 && count < planned)
        fail(test ": planned " planned " tests and ran " count)
    else if (status == 0 && !count && test != "lists")
        passed++
    test = ""
    next
}
/^@test done$/ { done = 1 }
!test { next }
/^1\.\.0.*# [Ss][Kk][Ii][Pp]/ {
    skipped++
    here["skipped"]++
    print "SKIPPED " test ": " $0
    next
}
/^1\.\.[0-9]+/ { planned = substr($1, 4) + 0 }
/^(not )?ok([ \t]|$)/ { result($0, test) }

END {
    if (ended)
        fail(ended)
    else if (!done)
        fail("the machine ended before the tests did" (test ? ", in " test : ""))
    else if (tests < programs)
        fail("of " programs " programs " tests + 0 " were run")
    if (kunit && !cases)
        fail("no test of KUnit was run")
    print passed + 0, failed + 0, skipped + 0
}
