"""Scripts for the shell. Each finds three files, `a.csv`, `b.csv` and `c.txt`, with their names."""

from __future__ import annotations

SCRIPTS = {
    "echo $(ls | wc -l) $((6 * 7))": "3 42\n",
    "echo 'é 漢' | wc -c; echo '漢'": "7\n漢\n",
    "timeout 0.1 sleep 5; echo $?": "124\n",
    """printf 'a 1\\nb 2\\n' | awk '{print $2 > "out_" $1}'; cat out_a; cat out_b""": "1\n2\n",
    "env A=1 B=2 python -c 'import os; print(os.environ[\"B\"])'": "2\n",
    r"printf '\303\251\n'; printf '\377' | od -An; echo -e '\0303\251'": "é\n 000377\né\n",
    "echo é > f; x() { cat f >&2; }; x 2>&1; cat f è 2>&1": (
        "é\né\ncat: è: No such file or directory\n"
    ),
    "bash --login -c 'echo $1' - a; sh -lc 'echo b'; bash -euc 'false; echo c'": "a\nb\n",
    "bash -euo pipefail -c 'false | true; echo a'; echo false > s; bash -e s": "",
    "/bin/sh -c '/usr/bin/env A=b printenv A'; cd /usr/bin; ls sed; which sqlite3": "b\nsed\n",
    "echo 'import sys; print(sys.argv)' > p.py; if true; then ./p.py a 'b c'; fi": (
        "['./p.py', 'a', 'b c']\n"
    ),
    "date -d '2024-01-31 + 1 month' +%F; awk 'BEGIN {print strftime(\"%F\", 9), 1 / 3}'": (
        "2024-03-02\n1970-01-01 0.333333\n"
    ),
    "trap 'echo $x $?' EXIT; x=1; install -D a.csv d/n; od -An -tx1 d/n; exit 3": (
        " 61 2e 63 73 76 0a\n1 3\n"
    ),
    "python -c 'import sys; print(sys.argv[1:], __name__)' a 'b c'": "['a', 'b c'] __main__\n",
    "echo 'import sys; sys.exit(4)' > s.py; python s.py; echo $?": "4\n",
    "echo '[1, 2]' | python -m json.tool --compact": "[1,2]\n",
    "cd /tmp; FOO=1 python -c 'import os; print(os.getcwd(), os.environ[\"FOO\"])'": "/tmp 1\n",
    "tar czf x.tgz *.csv && rm *.csv && tar xvf x.tgz && cat b.csv": "a.csv\nb.csv\nb.csv\n",
    "zip -qr x.zip a.csv c.txt; rm a.csv; unzip -q x.zip; cat a.csv": "a.csv\n",
    "md5sum a.csv > s; sha256sum a.csv >> t; md5sum -c s; sha256sum -c t": "a.csv: OK\n" * 2,
    "date -d '9999999 years' 2>&1; shuf -i 1-9999999999999999999 2>&1; shuf -r -n1 -e 2>&1": (
        "date: invalid date '9999999 years'\nshuf: a number is out of range\n"
        "shuf: can't use this: list index out of range\n"
    ),
    "uname -sm; nproc; id -un; id -u; echo $BASH; more c.txt; cat c.txt | less -N": (
        "wasi wasm32\n1\nuser\n1000\n/bin/bash\nc.txt\nc.txt\n"
    ),
    "seq -f '%03g' 2; seq -ws, 9 .5 10; seq 1000001 | tail -1; seq 1 9999999999999 2>&1": (
        "001\n002\n09.0,09.5,10.0\n1000001\nseq: 9999999999999 numbers do not fit into memory\n"
    ),
    "echo '1/0' | bc 2>&1; echo '2*(' | bc 2>&1; echo 'obase=2' | bc 2>&1; echo 'sqrt(9)' | bc": (
        "bc: can't calculate '1/0': division by zero\nbc: can't calculate '2*(': syntax error\n"
        "bc: numbers of other bases than 10 are not known here\n3\n"
    ),
    "echo $((2**62 + 1)) $((1 << 40)) $((~(1 << 33))) $((0x7fffffffffffffff + 1)) $((-7 / 2))": (
        "4611686018427387905 1099511627776 -8589934593 -9223372036854775808 -3\n"
    ),
    "x=$((2**62)); ((x++)); ((x += 2)); echo $x $((x % 1000)); let y=x*3; echo $((y == x * 3))": (
        "4611686018427387907 907\n1\n"
    ),
    r"sed 's/\(.\)\.\(c\)/\U\1&\E-\u\2\n\0/' a.csv": "AA.C-C\na.csv\n",
    r"""echo 'a"b/c' | sed 's/"/\\"/; s/\//\\n/; s/c/\\\\&/'""": r"a\"b\n\\c" + "\n",
    """seq 3 | awk '{q += $1^2; a[$1]} END {print q, 3 in a, sprintf("%d %.1f", "-3.9x", 2)}'""": (
        "14 1 -3 2.0\n"
    ),
    "printf 'a b\\nc\\n' | xargs -I{} echo '<{}>'; ls *.csv | xargs -I F cat F": (
        "<a b>\n<c>\na.csv\nb.csv\n"
    ),
    "printf '%g %.3g %g %g\\n' 1e10 100 0.5 1e-7": "1e+10 100 0.5 1e-07\n",
    "n=0; until ((n>=2)); do ((n+=1)); done; ((n<=1)); echo $n $?": "2 1\n",
    "echo {1..20000} | wc -w; set -- a b c; echo ${#@}; mkdir d; echo */": "20000\n3\nd/\n",
    "mkdir d; cp a.csv d/.h; grep -r a.c; grep -rl a.c .; grep -rn b.c d b.csv": (
        "a.csv:a.csv\nd/.h:a.csv\n./a.csv\n./d/.h\nb.csv:1:b.csv\n"
    ),
    """jq -nr '["a b", 1, "c"] | @csv'; tail -c +3 a.csv; tail -n -1 c.txt""": (
        '"a b",1,"c"\ncsv\nc.txt\n'
    ),
    r"paste -d'\t,' a.csv b.csv c.txt; echo a,b,c | cut -d, --complement -f2; cut -b2- a.csv": (
        "a.csv\tb.csv,c.txt\na,c\n.csv\n"
    ),
    "tar cf x --exclude='*.csv' *; tar tf x; gzip -c a.csv > g; gzip -t g && sort -m a.csv": (
        "c.txt\na.csv\n"
    ),
    r"sed '1i\x' a.csv; seq 5 | sed '2a\y' | head -3": "x\na.csv\n1\n2\ny\n",
    "set -e; f() { false; echo in; }; f && echo and; ! false; f || echo no; false; echo not": (
        "in\nand\nin\n"
    ),
    'set -u; a=(); echo "${b:-c}" "${1-d}" "${b:+e}"; echo "${a[@]}${#a[@]}"': "c d \n0\n",
    """echo a b | awk -v OFS=- '{$1=$1; print $0, length, int(-1.5), substr("abc", 0, 2)}'""": (
        "a-b-3--1-a\n"
    ),
    """awk 'BEGIN {x[1] = 1; printf "%g %G %.2g ", 1e10, 1e-7, 2^2000; print length(x), 1e-7}'""": (
        "1e+10 1E-07 inf 1 1e-07\n"
    ),
    """echo 'a.b|c' > p; awk -F. '{print $1}' p; awk 'BEGIN {FS = "|"} {print $2}' p""": "a\nc\n",
    "echo '{print $1}' > p; awk -f p OFS=x a.csv; awk '{print $2}' FS=. a.csv; awk 'RS=1' 2>&1": (
        "a.csv\ncsv\nawk: records other than lines (RS) are not known here\n"
    ),
    "s=abc; echo ${s:1:2**62}; expr 9007199254740993 + 1; expr -7 / 2; expr a + 1 2>&1": (
        "bc\n9007199254740994\n-3\nexpr: non-integer argument\n"
    ),
    "x=$((2**53 + 1)); [ $x -gt $((2**53)) ] && [[ ! $x -eq 2**53 ]] && test $x -eq $x && echo a": (
        "a\n"
    ),
    "printf '(%.0s' {1..9999} | bc 2>&1 | cut -c-24; shuf -i 1-999999999 2>&1": (
        "bc: can't calculate '(((\nshuf: memory exhausted\n"
    ),
}
"""Scripts, and what bash prints for them; the soak runs just-bash's own cases."""
