"""Reports and audits as one page of HTML: `page` makes it of tabs, which stand on `figures`, `markup` and `words`."""
