// How the HTML report looks: on a light screen, a dark one, a narrow one and on paper. Colours of rows (c0 … c5) are
// told apart by readers of every kind of colour vision and are never the only way to tell rows apart.
#pragma once
#include <string_view>

namespace oscar {

inline constexpr std::string_view kReportStyle = R"css(
:root{color-scheme:light dark;--page:#fff;--ink:#1b1d21;--soft:#5d636e;--line:#d9dce1;--faint:#ebedf0;--rest:#c3c8d0;--code:#f5f6f8;
--c0:#0067a8;--c1:#c8500a;--c2:#00805a;--c3:#a8477f;--c4:#a87900;--c5:#3d93c9;
--h0:#f3f6fa;--h1:#dde8f3;--h2:#c0d7ea;--h3:#9cc0de;--h4:#74a5cf;--h5:#4f87bb;--h6:#3268a3;--h7:#1d4a84;--h8:#0d2c5c;
--d0:#e0a03a;--d1:#d8804a;--d2:#c4605c;--d3:#a4486e;--d4:#7c3b78;--d5:#543376;--d6:#2b2a66}
@media screen and (prefers-color-scheme:dark){:root{--page:#14161a;--ink:#e4e6ea;--soft:#9aa1ad;--line:#343941;--faint:#24282e;--rest:#4a515c;--code:#1c1f25;
--c0:#5cb0ee;--c1:#f2915a;--c2:#3cc79c;--c3:#e59ac6;--c4:#e6bb4e;--c5:#a5dcff;
--h0:#1b2029;--h1:#1c2d42;--h2:#1f3e5f;--h3:#24527f;--h4:#2e699e;--h5:#4384bb;--h6:#66a3d4;--h7:#98c6ea;--h8:#d8ecfc;
--d0:#ffd68a;--d1:#fbb277;--d2:#ec8f84;--d3:#d37896;--d4:#b06cab;--d5:#8b6bba;--d6:#6f78cc}}
*{box-sizing:border-box}
body{margin:0 auto;max-width:1088px;padding:48px 24px 64px;background:var(--page);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,"Segoe UI","Helvetica Neue","Liberation Sans",Arial,sans-serif;font-variant-numeric:lining-nums;text-rendering:optimizeLegibility}
h1{font-size:26px;line-height:1.25;font-weight:600;letter-spacing:-.01em;margin:0 0 6px}
h2{font-size:18px;line-height:1.3;font-weight:600;margin:52px 0 10px}
p{margin:0 0 12px;max-width:46em}
.lead{font-size:16.5px;margin:22px 0 0}
.under,figcaption,caption,.none,footer{color:var(--soft);font-size:13.5px}
.under{overflow-wrap:anywhere}
code,pre{font-family:ui-monospace,"SF Mono",Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;font-size:12.5px}
pre{background:var(--code);padding:12px 14px;margin:0 0 10px;border-radius:4px;white-space:pre-wrap;overflow-wrap:anywhere}
figure{margin:18px 0 30px}
figcaption{max-width:56em;margin-top:8px;line-height:1.5}
figcaption b,caption b{color:var(--ink);font-weight:600}
.wide,.table{overflow-x:auto}
.wide svg{min-width:720px}
svg{display:block;max-width:100%;height:auto;overflow:visible}
svg.defs{position:absolute}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:24px 28px}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(168px,1fr));gap:18px 14px}
.panels svg{width:100%}
table{border-collapse:collapse;font-size:13.5px;line-height:1.4;font-variant-numeric:tabular-nums lining-nums;margin:14px 0 8px}
caption{caption-side:bottom;text-align:left;padding-top:10px;line-height:1.5}
caption span{display:block;position:sticky;left:0;max-width:min(60em,calc(100vw - 48px))}
th{font-weight:600;text-align:left;vertical-align:bottom}
th,td{padding:5px 0 5px 18px}
th:first-child,td:first-child{padding-left:0}
thead th{border-bottom:1px solid var(--ink);font-size:12.5px}
thead .group{border-bottom:0;padding-bottom:0;color:var(--soft);font-weight:400;text-align:right}
tbody th{font-weight:500}
tbody td,tbody th{border-bottom:1px solid var(--faint);vertical-align:top}
tbody tr:last-child>*{border-bottom:1px solid var(--ink)}
.rows td,.rows thead th{white-space:nowrap}
.rows tbody th{min-width:170px;overflow-wrap:break-word}
.number{text-align:right}
.rows small{display:block;color:var(--soft);font-size:11.5px;font-weight:400}
tr.exact>*{border-bottom:1px solid var(--line)}
.least{font-weight:700}
.facts{width:100%}
.facts th{width:15em;white-space:nowrap}
.facts td{overflow-wrap:anywhere}
footer{margin-top:56px;border-top:1px solid var(--line);padding-top:12px}
text{font-size:12px;fill:var(--ink);font-variant-numeric:tabular-nums lining-nums}
.tick,.label{fill:var(--soft)}
.tick{font-size:11px}
.end{text-anchor:end}
.mid{text-anchor:middle}
.panels text{font-size:11px}
.mark text{paint-order:stroke;stroke:var(--page);stroke-width:3px;stroke-linejoin:round}
.grid{stroke:var(--faint);fill:none}
.axis{stroke:var(--soft);fill:none}
.leader{fill:none;stroke:var(--c);stroke-width:1.5}
.pointer{fill:none;stroke:var(--soft);stroke-width:.7}
.line path{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round}
.line circle{fill:var(--c)}
.mark circle{fill:var(--c);stroke:var(--page);stroke-width:1}
.strong path{stroke-width:2.4}
.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}.c4{--c:var(--c4)}.c5{--c:var(--c5)}
.b0,.b1,.b2,.b3,.ring{--c:var(--soft)}
.line.b0 path,.leader.b0{stroke-dasharray:1.5 3}
.line.b1 path,.leader.b1{stroke-dasharray:5 2 1.5 2}
.line.b2 path,.leader.b2{stroke-dasharray:4 3}
.line.b3 path,.leader.b3{stroke-dasharray:9 3}
.rest{--c:var(--rest)}
.line.rest path{stroke-width:1}
.mark.rest circle{fill:var(--soft)}
.mark.b0 circle,.mark.b1 circle,.mark.b2 circle,.mark.b3 circle{fill:var(--page);stroke:var(--c);stroke-width:1.8}
.line.rest.strong path{stroke:var(--ink);stroke-width:1.8}
.ring circle{fill:var(--page);stroke:var(--ink);stroke-width:1.5;r:4.5px}
.line.c0.best circle{r:4.5px}
.line.front path{stroke:var(--soft);stroke-width:1}
.line.guide path{stroke:var(--soft);stroke-width:1;stroke-dasharray:2 4}
.d0{--c:var(--d0)}.d1{--c:var(--d1)}.d2{--c:var(--d2)}.d3{--c:var(--d3)}.d4{--c:var(--d4)}.d5{--c:var(--d5)}.d6{--c:var(--d6)}
.line.d0 path,.line.d1 path,.line.d2 path,.line.d3 path,.line.d4 path,.line.d5 path,.line.d6 path{stroke-width:1.1}
.h0{fill:var(--h0)}.h1{fill:var(--h1)}.h2{fill:var(--h2)}.h3{fill:var(--h3)}.h4{fill:var(--h4)}.h5{fill:var(--h5)}.h6{fill:var(--h6)}.h7{fill:var(--h7)}.h8{fill:var(--h8)}
.hn{fill:none;stroke:var(--line)}
@media (max-width:640px){body{padding:28px 16px 48px}h1{font-size:22px}.lead{font-size:15.5px}.facts th{width:auto;white-space:normal}
.rows tbody th{min-width:116px}.rows th:first-child{position:sticky;left:0;background:var(--page)}}
@media print{@page{margin:16mm 14mm}body{padding:0;max-width:none;font-size:9.5pt}h2{margin-top:26px;break-after:avoid}
figure,pre,tr{break-inside:avoid}.wide,.table{overflow:visible}.wide svg{min-width:0}table{font-size:8pt}th,td{padding-left:9px}.rows td,.rows thead th{white-space:normal}
figure:has(.panels){break-inside:auto}.panels{grid-template-columns:repeat(5,1fr);gap:10px}.panels svg{break-inside:avoid}
svg rect,svg circle{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
)css";

}  // namespace oscar
