"""Parts of just-bash's `jq` for the shell's guest (`just_bash.py`)."""

from __future__ import annotations

_QUOTED = b"""return'"'+i.replace(/"/g,'""')+'"'"""
_FIELD = b"""case"Field":{if(!qe(c.name))return l;
return o(l,c.base??{type:"Identity"},f=>{if(f!=null&&!Je(f))throw new Error(
`Cannot index ${Array.isArray(f)?"array":typeof f} with string "${c.name}"`);
let d=f==null?Object.create(null):$t(f);
Ze(d,c.name,u(Object.hasOwn(d,c.name)?d[c.name]:null));return d})}
case"Index":if(c.base)return o(l,c.base,f=>o(f,{type:"Index",index:c.index},u));
if(l==null&&typeof te(e,c.index,s)[0]=="string")l=Object.create(null);"""
_LOOP = b"""case"Iterate":{let f=d=>{if(d==null)throw new Error("Cannot iterate over null");
if(Array.isArray(d))"""
_SORTED = b"""case"sort_by":return!Array.isArray(e)||n.length===0?[null]:
[[...e].sort((f,d)=>{let p=s(f,n[0],r),h=s(d,n[0],r);"""
_UNIQUE = b"""case"unique_by":{if(!Array.isArray(e)||n.length===0)return[null];
let u=new Map;for(let d of e){let p=s(d,n[0],r),h=keyOf(p)"""
_SHORT = b"""(s[0]==="$"?(n=s.slice(1),r={type:"VarRef",name:s}):(n=s,r={type:"Field",name:s}))"""
_GROUPS = b"""{if(!Array.isArray(e)||n.length===0)return[null];let u=new Map;
for(let f of e){let k=s(f,n[0],r),d=keyOf(k);
u.has(d)||u.set(d,{k,v:[]});u.get(d).v.push(f)}
return[[...u.values()].sort((a,b)=>o(a.k,b.k)).map(a=>a.v)]}"""
_INDEX = b"""if(s!==null&&(typeof o=="string"&&!Je(s)||typeof o=="number"))
throw new Error(`Cannot index ${Array.isArray(s)?"array":typeof s} with ${typeof o}`);
if(typeof o=="string"){let a=Je(s);"""
_WALK = b"""const w=v=>s(Array.isArray(v)?v.flatMap(w):Je(v)?Object.entries(v).reduce((c,[k,x])=>{
const[y]=w(x);if(y!==void 0)Ze(c,k,y);return c},Object.create(null)):v,n[0],r);return w(e)}"""
_MATCHES = b"""c=a.includes("g")?[...ie(o,`${a}d`).matchAll(e)]:[ie(o,`${a}d`).exec(e)];
return c.filter(Boolean).map(c=>{const u=c.indices,q=Object.keys(c.groups??{});
return{offset:c.index,length:c[0].length,string:c[0],captures:c.slice(1).map((f,d)=>
({offset:u?.[d+1]?.[0]??-1,length:f?.length??0,string:f??null,
name:q.length===c.length-1?q[d]:null}))}})}catch"""
_UNIQUE_VALUES = b"""case"unique":
return s(e,{type:"Call",name:"unique_by",args:[{type:"Identity"}]},r);"""
_INDEXED = b"""case"INDEX":{if(n.length===0)return[Object.create(null)];
if(n.length===1)n=[{type:"Iterate"},n[0]];"""
_UPDATED = b"""case"UpdateOp":return updated(e,t,(v,f)=>te(v,f,n),Va,Ga)"""
_PATHS = (
    b"""case"path":{if(n.length===0)return[[]];let u=pathsOf(e,n[0],(v,f)=>s(v,f,r));return u;"""
)
_DELETED = b"[e]:[removed(e,pathsOf(e,n[0],(v,f)=>s(v,f,r),true),a)];case"
_EQUAL = b"function wi(e,t){return Wa(e,t)===0}function bo(e,t){return Wa(e,t)}"
_NUMBERS = b"""typeof t=="number")
return Number.isNaN(e)?-1:Number.isNaN(t)?1:e-t;if(typeof e=="string"&&typeof t=="string")
return e.localeCompare(t);if(typeof e=="boolean\""""
_ADDED = b"""vs(...d):d.length===1?d[0]:
unfit("added",d[0],d.find(p=>kindOf(p)!==kindOf(d[0]))??d[1])};"""
_ESCAPES = rb"""case"(":f+="\\(",d=1;break;
case"b":f+="\b";break;case"f":f+="\f";break;
case"u":{let q="";for(;q.length<4&&!i();)q+=s();f+=String.fromCharCode(parseInt(q,16));break}"""
_SPLIT = b"""case"split":{
if(n.length>1)return[s(e,{type:"Call",name:"splits",args:n},r)];"""
_ENTRIES = b"""case"to_entries":{let i=Je(e);if(Array.isArray(e))return[
e.map((v,k)=>Object.assign(Object.create(null),{key:k,value:v}))];if(i){"""
_FOR_SHELL = rb"""case"@sh":return[(Array.isArray(e)?e:[e]).map(x=>{
if(x!==null&&typeof x==="object")throw new Error("an object or array can not be escaped for shell");
return typeof x==="string"?`'${x.replace(/'/g,"'\\''")}'`:JSON.stringify(x)}).join(" ")];"""
_FORMAT = b"""function qu(e,t,n){
if(/^@(text|html|uri|base64d?|urid)$/.test(t)&&typeof e!="string")e=JSON.stringify(e);"""
_TSV = rb'r=>String(r??"").replace(/\\/g,"\\\\").replace(/\r/g,"\\r").replace(/\t'
_ROW = b"""if(s===null)return"";
if(typeof s=="object")unfit("formatted for csv output",s);if(typeof s=="boolean")return s"""
_COMMA = b"""let r=te(e,t.left,n),s;
try{s=te(e,t.right,n)}catch(q){throw q instanceof Ei?q.withPrependedResults(r):q}return Pt("""
_LARGE = b"""Object.is(t,-0)?"-0":Number.isNaN(t)?"null":
String(Math.max(-Number.MAX_VALUE,Math.min(Number.MAX_VALUE,t)))"""
_SCALED = b"""case"ldexp":case"scalb":case"scalbn":case"scalbln":{const[x,i]=n.map(q=>s(e,q,r)[0]);
if(typeof x!="number"||typeof i!="number")throw new Error(`${t} needs two numbers`);
return[x*2**i]}"""
_TO_NUMBER = rb"""case"tonumber":if(typeof e=="number")return[e];if(typeof e=="string"){
let i=/^\s*[-+]?(\d+\.?\d*|\.\d+)(e[-+]?\d+)?\s*$/i.test(e)?Number(e):NaN;"""
_STREAM = b"""case"tostream":{const go=(v,p)=>{const q=pairsIn(v,!1);
return[...q.flatMap(([k,x])=>go(x,[...p,k])),q.length?[[...p,q.at(-1)[0]]]:[p,v]]};
return go(e,[])}"""

PARTS = (
    # texts of @csv without quotes
    (b'return i.includes(",")||i.includes', b'}).join(",")]:[null];case"@tsv"', _QUOTED),
    # groups in order, keys of several values, wrong indexes, `walk`, all matches, {$x}
    (b'case"sort_by":return!Array.isArray(e)', b"return o(p,h)})]", _SORTED),
    (b'case"unique_by":{if(!Array.isArray(e)', b";u.has(h)||u.set(h,{item", _UNIQUE),
    (b'case"group_by":', b'case"max":return', b'case"group_by":' + _GROUPS),
    (b'if(typeof o=="string"){let a=Je(s);', _INDEX),
    (b"let l=bi(r),c=new WeakSet,u=new WeakMap", b'case"transpose":', _WALK),
    (b"c=ie(o,`${a}d`).exec(e);if(!c)return[];", b"{return[null]}}case", _MATCHES),
    (b'(n=s,r={type:"Field",name:s})', _SHORT),
    (b'E==="--join-output")c=!0', b'E==="--join-output")c=r=!0'),
    # paths through null
    (b'case"Field":{if(!qe(c.name))return l;if(c.base)', b"{let d=te(e,c.index,s)[0];", _FIELD),
    (b'case"Iterate":{let f=d=>{if(Array.isArray(d))', _LOOP),
    # sorted `unique`, entries of arrays, `INDEX` of all values, arrays for a shell
    (b'case"unique":', b'case"tojson"', _UNIQUE_VALUES),
    # operators on values that they do not take, the order of values of different kinds
    (b"function wi(e,t){", b"function Ag(", _EQUAL),
    (b'typeof t=="number")return e-t;if(typeof e=="string"', b'&&typeof t=="boolean")', _NUMBERS),
    (b'ou(l,c):null;case"-":', b'ou(l,c):unfit("added",l,c);case"-":'),
    (b"subtracted`)}return null;", b'subtracted`)}return unfit("subtracted",l,c);'),
    (b"vs(...d):null};", _ADDED),
    (b'[u(e)]:[null]}case"any"', b'[u(e)]:[u(pairsIn(e).map(p=>p[1]))]}case"any"'),
    (b"let u=Math.trunc(c);if(u<0)return", b"let u=Math.max(1,Math.trunc(c));if(c<=0)return"),
    (b"visit:()=>mn(s)})}return null;", b'visit:()=>mn(s)})}return unfit("multiplied",l,c);'),
    (b"l.split(c):null;", b'l.split(c):unfit("divided",l,c);'),
    (b"-1:0:l%c}return null;", b'-1:0:remainder(l,c)}return unfit("divided",l,c);'),
    (b"cannot be negated`)}return null}", b'cannot be negated`)}return unfit("negated",s)}'),
    (b'case"UpdateOp":return[MS(e,t.path,t.op,t.value,n)]', _UPDATED),
    (b'case"path":{if(n.length===0)return[[]];let u=[];', b"return c(e,n[0]", _PATHS),
    (b"[e]:[l(e,n[0],r)];case", _DELETED),
    (b"d=e;for(let p of f.sort((h,m)=>m.length-h.length))d=a(d,p);", b"d=removed(e,f,a);"),
    (rb'case"(":f+="\\(",d=1;break;', _ESCAPES),
    (b'case"split":{', _SPLIT),
    (b'case"to_entries":{let i=Je(e);if(i){', _ENTRIES),
    (b'case"INDEX":{if(n.length===0)return[Object.create(null)];', _INDEXED),
    (b'case"@sh":', b'case"@text"', _FOR_SHELL),
    # formats of other values than texts, rows, streams, `1, break`, `-nj`, large numbers
    (b"function qu(e,t,n){", _FORMAT),
    (rb'r=>String(r??"").replace(/\t', _TSV),
    (b'if(s===null)return"";if(typeof s=="boolean")return s', _ROW),
    (b"let r=te(e,t.left,n),s=te(e,t.right,n);return Pt(", _COMMA),
    (b'case"tostream":{', b'case"fromstream"', _STREAM),
    (b'A==="j")c=!0', b'A==="j")c=r=!0'),
    (b'Number.isFinite(t)?String(t):"null"', _LARGE),
    # the order of several results, times, powers of two, texts that are no numbers
    (b"i.flatMap(l=>o.map(c=>{switch(t)", b"o.flatMap(c=>i.map(l=>{switch(t)"),
    (b'let l=["Sunday","Monday"', b'case"strptime":', b"return[written(a,o)]}"),
    (b'case"ldexp":{', b'case"nearbyint":', _SCALED),
    (b'case"tonumber":if(typeof e=="number")', b"if(Number.isNaN(i))", _TO_NUMBER),
)
"""For each part: the text at its beginning, the text behind it, if any, and the new code."""
