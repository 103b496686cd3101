-- Gold: what people ask for. It is made anew in each run.
CREATE MATERIALIZED VIEW gold AS
SELECT
  region,
  symbol,
  date_trunc('HOUR', timestamp) AS hour,
  count(*) AS orders,
  sum(price * quantity) AS turnover
FROM silver
GROUP BY ALL;
