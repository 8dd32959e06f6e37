// What each step took, for the last words of a run: from the records that the steps wrote.

def duration(seconds) {
    def whole = Math.round(seconds as double)
    return whole >= 3600 ? "${whole.intdiv(3600)} h ${whole.intdiv(60) % 60} min" : whole >= 60 ? "${whole.intdiv(60)} min ${whole % 60} s" : String.format(Locale.ROOT, '%.1f s', seconds as double)
}

def size(bytes) {
    return bytes >= 1e9 ? String.format(Locale.ROOT, '%.1f GB', bytes / 1e9 as double) : "${Math.round(bytes / 1e6 as double)} MB"
}

// Lines of a table, one a step: its tasks, seconds and bytes summed over them, where it ran, and how long
// it waited for a GPU. Nothing where no step left a record.
def stepTable(notes) {
    def order = ['resample', 'stitch', 'stack', 'n4', 'pyramid']
    def rows = notes.groupBy { record -> record.step }.sort { a, b -> order.indexOf(a.key) <=> order.indexOf(b.key) }.collect { step, of ->
        def waited = of.sum { record -> record.figures?.gpu?.slot_wait_seconds ?: 0 }
        def devices = of.collect { record -> record.device?.backend == 'gpu' ? "GPU (${record.device.device})" : 'CPU' }.unique()
        [
            step.toUpperCase(),
            "${of.size()}",
            duration(of.sum { record -> record.seconds?.total ?: 0 }),
            size(of.sum { record -> record.bytes?.read ?: 0 }),
            size(of.sum { record -> record.bytes?.written ?: 0 }),
            waited > 0 ? duration(waited) : '-',
            devices.join(', '),
        ]*.toString()
    }
    if (!rows) {
        return []
    }
    def table = [['step', 'tasks', 'time', 'read', 'written', 'GPU wait', 'device']] + rows
    def widths = table.transpose().collect { column -> column.collect { cell -> cell.size() }.max() }
    return table.collect { row -> [row, widths].transpose().withIndex().collect { pair, place -> place in [0, 6] ? pair[0].padRight(pair[1]) : pair[0].padLeft(pair[1]) }.join('  ').stripTrailing() }
}
