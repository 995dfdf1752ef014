// Boards with their answers go in (window.ASKED, by draw.py), a page comes out.
// The panels are Grafana's own React components of npm; heatmaps, rows and the title are drawn here,
// since those plugins are not published. It is not a Grafana: it proves no import, no plugin, no alert.
import {
  createTheme, dateTime, Field, FieldType, getDisplayProcessor, ThemeContext, toDataFrame,
} from '@grafana/data';
import {
  BigValue, BigValueColorMode, BigValueGraphMode, BigValueJustifyMode, BigValueTextMode, GlobalStyles,
  PanelChrome, TimeSeries,
} from '@grafana/ui';
import 'uplot/dist/uPlot.min.css';
import React from 'react';
import { createRoot } from 'react-dom/client';
import { flushSync } from 'react-dom';

const CELL = 30, GAP = 8, HEAD = 64; // Grafana's grid, pixels
const theme = createTheme({ colors: { mode: 'dark' } });
const asked = (window as any).ASKED;
const range = { from: dateTime(asked.from), to: dateTime(asked.to), raw: { from: 'now-2m', to: 'now' } };
const noData: React.CSSProperties = {
  display: 'flex', height: '100%', alignItems: 'center', justifyContent: 'center', textAlign: 'center',
  color: theme.colors.text.secondary,
};

function configOf(panel: any, name: string): any {
  const config = structuredClone(panel.fieldConfig.defaults);
  for (const { matcher, properties } of panel.fieldConfig.overrides) {
    if (matcher.id !== 'byName') { throw new Error(`unknown matcher ${matcher.id}`); }
    if (matcher.options !== name) { continue; }
    for (const { id, value } of properties) {
      if (id.startsWith('custom.')) { config.custom[id.slice(7)] = value; } else { config[id] = value; }
    }
  }
  return config;
}

function framesOf(panel: any): any[] {
  const step = 2000;
  const times: number[] = [];
  for (let at = asked.from; at <= asked.to; at += step) { times.push(at); }
  let index = 0;
  return panel.targets.flatMap((target: any) => target.series.map((series: any) => {
    const found = new Map(series.values.map(([at, v]: [number, string]) => [Math.round((at * 1000 - asked.from) / step), parseFloat(v)]));
    const values = times.map((_, n) => { const v = found.get(n) as number | undefined; return v === undefined || Number.isNaN(v) ? null : v; });
    const config = { ...configOf(panel, series.name), displayName: series.name };
    const frame = toDataFrame({
      refId: target.refId,
      fields: [
        { name: 'Time', type: FieldType.time, values: times, config: {} },
        { name: series.name, type: FieldType.number, values, config },
      ],
    });
    frame.fields.forEach((field: Field) => { field.state = { ...field.state, displayName: field.name }; });
    frame.fields[1].state = { ...frame.fields[1].state, seriesIndex: index++ };
    frame.fields.forEach((field: Field) => { field.display = getDisplayProcessor({ field, theme }); });
    return frame;
  }));
}

function Body({ panel, width, height }: { panel: any; width: number; height: number }) {
  if (panel.type === 'heatmap') { return <Heatmap panel={panel} width={width} height={height} />; }
  const frames = framesOf(panel);
  if (!frames.length) { return <div style={noData}>{panel.fieldConfig.defaults.noValue ?? 'No data'}</div>; }
  if (panel.type === 'stat') { return <Stat panel={panel} frames={frames} width={width} height={height} />; }
  if (panel.type !== 'timeseries') { throw new Error(`unknown panel ${panel.type}`); }
  return (
    <TimeSeries frames={frames} structureRev={1} timeRange={range as any} timeZone="utc" width={width} height={height} legend={panel.options.legend}>
      {() => null}
    </TimeSeries>
  );
}

function Stat({ panel, frames, width, height }: { panel: any; frames: any[]; width: number; height: number }) {
  const tall = height / frames.length;
  return <div>{frames.map((frame, n) => {
    const [x, y] = frame.fields;
    const last = y.values.findLast((v: number | null) => v !== null) ?? null;
    const value = { ...y.display(last), title: frames.length > 1 ? y.name : undefined };
    const sparkline = panel.options.graphMode === 'none' ? undefined
      : { y: { ...y, config: { ...y.config, custom: { ...y.config.custom, fillOpacity: 20, lineWidth: 1 } } }, x };
    return (
      <BigValue key={n} width={width} height={tall} value={value} count={frames.length} sparkline={sparkline} theme={theme}
        colorMode={panel.options.colorMode as BigValueColorMode} graphMode={panel.options.graphMode as BigValueGraphMode}
        justifyMode={BigValueJustifyMode.Auto} textMode={BigValueTextMode.Auto} />
    );
  })}</div>;
}

const BLUES = [[18, 31, 48], [33, 84, 140], [74, 144, 200], [158, 202, 225], [235, 244, 252]];

function shade(share: number): string { // the brighter the more, as Grafana's Blues on dark
  const at = Math.min(share, 0.9999) * (BLUES.length - 1), n = Math.floor(at);
  return `rgb(${BLUES[n].map((c, i) => Math.round(c + (BLUES[n + 1][i] - c) * (at - n))).join()})`;
}

function Heatmap({ panel, width, height }: { panel: any; width: number; height: number }) {
  const rows = panel.targets[0].series
    .map((s: any) => ({ le: s.labels.le === '+Inf' ? Infinity : Number(s.labels.le), at: new Map(s.values.map(([t, v]: [number, string]) => [t, parseFloat(v)])) }))
    .sort((a: any, b: any) => a.le - b.le);
  if (!rows.length) { return <div style={noData}>No data</div>; }
  const left = 56, bottom = 22, wide = width - left - 8, tall = height - bottom - 4;
  const each = tall / rows.length, columns = (asked.to - asked.from) / 2000 + 1;
  const unit = getDisplayProcessor({ field: { type: FieldType.number, config: { unit: panel.options.yAxis.unit } } as any, theme });
  const cells: Array<[number, number, number]> = [];
  rows.forEach((row: any, r: number) => row.at.forEach((upTo: number, t: number) => {
    const count = upTo - (r ? rows[r - 1].at.get(t) ?? 0 : 0);
    if (count > 1e-9) { cells.push([Math.round((t * 1000 - asked.from) / 2000), r, count]); }
  }));
  const most = Math.max(...cells.map((c) => c[2]));
  const text = { fill: theme.colors.text.primary, fontSize: 12, fontFamily: theme.typography.fontFamily };
  const labelled = Math.ceil(16 / each);
  return (
    <svg width={width} height={height}>
      {cells.map(([x, r, count], n) => (
        <rect key={n} x={left + (wide / columns) * x} y={4 + tall - each * (r + 1)} width={wide / columns - 1} height={each - 1}
          fill={shade((count / most) ** panel.options.color.exponent)} />
      ))}
      {rows.map((row: any, r: number) => r % labelled === 0 && (
        <text key={r} x={left - 6} y={4 + tall - each * (r + 0.5) + 4} textAnchor="end" {...text}>
          {row.le === Infinity ? '+Inf' : ((d) => d.text + (d.suffix ?? ''))(unit(row.le))}
        </text>
      ))}
      {[...Array(Math.floor((asked.to - asked.from) / 30000) + 1).keys()].map((n) => {
        const at = Math.ceil(asked.from / 30000) * 30000 + n * 30000;
        return at <= asked.to && (
          <text key={n} x={left + (wide * (at - asked.from)) / (asked.to - asked.from)} y={height - 5} textAnchor="middle" {...text}>
            {new Date(at).toISOString().slice(11, 19)}
          </text>
        );
      })}
    </svg>
  );
}

function Board({ board }: { board: any }) {
  const column = (window.innerWidth - 2 * GAP + GAP) / 24;
  const end = Math.max(...board.panels.map((p: any) => p.gridPos.y + p.gridPos.h));
  return (
    <div style={{ position: 'relative', height: HEAD + end * (CELL + GAP), background: theme.colors.background.canvas }}>
      <div style={{ padding: '10px 16px', ...theme.typography.h4 }}>{board.title}
        <div style={{ ...theme.typography.bodySmall, color: theme.colors.text.secondary }}>
          {Object.entries(board.values).map(([name, value]: any) => `${name} ${/^\.\*$|^\.\+$|^\(/.test(value) ? 'All' : value}`).join('  ·  ')}
          {'  ·  drawn with Grafana’s components by dashboards/pictures, not by a Grafana'}
        </div>
      </div>
      {board.panels.map((panel: any) => {
        const { x, y, w, h } = panel.gridPos;
        const width = w * column - GAP, height = h * CELL + (h - 1) * GAP;
        const place: React.CSSProperties = { position: 'absolute', left: GAP + x * column, top: HEAD + y * (CELL + GAP), width, height };
        return panel.type === 'row'
          ? <div key={panel.id} style={{ ...place, ...theme.typography.h5, padding: '6px 8px' }}>⌄ {panel.title}</div>
          : <div key={panel.id} style={place}>
              <PanelChrome title={panel.title} width={width} height={height} padding="md">
                {(w: number, h: number) => <Body panel={panel} width={w} height={h} />}
              </PanelChrome>
            </div>;
      })}
    </div>
  );
}

const board = asked.boards[Number(new URLSearchParams(location.search).get('board'))];
const root = createRoot(document.getElementById('root')!);
// Grafana measures its axes in the font Inter alone, which npm's packages do not bring; it draws them in
// the next of its list.
const measure = CanvasRenderingContext2D.prototype.measureText;
CanvasRenderingContext2D.prototype.measureText = function (text) {
  if (/Inter"?$/.test(this.font)) { this.font = `${this.font}, Helvetica, Arial, sans-serif`; }
  return measure.call(this, text);
};
flushSync(() => root.render(
  <ThemeContext.Provider value={theme}><GlobalStyles /><Board board={board} /></ThemeContext.Provider>,
));
